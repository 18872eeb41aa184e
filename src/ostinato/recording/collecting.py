"""Automatic garbage collection, held off while something must not be interrupted by it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_collecting = threading.Lock()
_held_off = 0


@contextmanager
def collection_held_off() -> Iterator[None]:
    """No automatic garbage collection inside: a graph collected during a capture would break it,
    and a callback of the collector would look like work of the callable that is watched.
    """
    global _held_off, _was_enabled
    with _collecting:
        if _held_off == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _held_off += 1
    try:
        yield
    finally:
        with _collecting:
            _held_off -= 1
            if _held_off == 0 and _was_enabled:
                gc.enable()


_was_enabled = True
