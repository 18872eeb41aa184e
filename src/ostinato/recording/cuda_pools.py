"""Memory pools in use, and those that are not needed any more, kept until nobody uses one.

torch's allocator ends the process when a ``torch.cuda.MemPool`` is destroyed while any thread
captures or allocates from a pool, and captures are begun by others too:
``torch.compile(mode="reduce-overhead")`` has been seen to collect such a pool as garbage in the
middle of its own. So a pool is never destroyed where it is dropped, and between the question
whether anybody is at work and the end of a pool no lane begins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ostinato.recording import cuda_sync

_left: list[Any] = []
_in_use: list[Any] = []
_lock = threading.Lock()


@contextmanager
def allocating_from(pool: Any) -> Iterator[None]:
    """What this thread allocates inside the block lies in ``pool``."""
    with _lock:
        _in_use.append(pool)
    try:
        with torch.cuda.use_mem_pool(pool):
            yield
    finally:
        with _lock:
            _in_use.remove(pool)


def leave(pool: Any) -> None:
    """Take over a pool from whoever does not need it any more."""
    _left.append(pool)


def give_back() -> None:
    """Destroy what was left, unless a pool is in use: then a later call does. Captures of other
    lanes are waited for.
    """
    if not _left:
        return
    with cuda_sync.gate.waiting(), _lock:
        if _in_use:
            return
        try:
            torch._C._cuda_emptyCache()  # refuses as the destructor would, but by an exception
        except RuntimeError:
            return
        _left.clear()
