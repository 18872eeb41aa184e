"""Device-wide waits of other threads, held off while a capture is under way.

CUDA forbids to synchronise or query a handle that encompasses a capturing stream: a thread that
calls ``torch.cuda.synchronize()`` while another one captures gets an error, and breaks the capture.
``torch.cuda.synchronize`` and ``torch.cuda.empty_cache`` look their C functions up at each call, so
these are replaced, once, by ones that wait for the capture; and a capture waits for them. Waits
for a stream or an event are not touched, nor are device-wide waits that compiled code makes by
itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

DEVICE_WIDE = ("_cuda_synchronize", "_cuda_emptyCache")


class DeviceWideGate:
    """Captures on one side, device-wide waits on the other: never both at once.

    Several captures (of several lanes) may be under way together, and so may several waits. A
    thread that captures may wait itself: the error is its own. A capture that is due goes before
    waits that have not begun, or a thread that waits again and again would keep it out for ever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiters: list[int] = []
        self._due: list[int] = []
        self._capturers: list[int] = []

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Begin when no other thread is inside a device-wide wait; those that come later wait."""
        me = threading.get_ident()
        with self._changed:
            self._due.append(me)
            try:
                self._changed.wait_for(lambda: all(w == me for w in self._waiters))
                self._capturers.append(me)
            finally:
                self._due.remove(me)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._capturers.remove(me)
                self._changed.notify_all()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Begin when no other thread captures or is about to."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(
                lambda: me in self._waiters or all(c == me for c in self._capturers + self._due)
            )
            self._waiters.append(me)
        try:
            yield
        finally:
            with self._changed:
                self._waiters.remove(me)
                self._changed.notify_all()

    def guarding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``original``, called when no other thread captures."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self.waiting():
                return original(*args, **kwargs)

        guarded.is_guarded = True  # type: ignore[attr-defined]
        return guarded


gate = DeviceWideGate()


def install(module: Any = torch._C) -> None:
    """Guard the device-wide functions of this process; calling it again changes nothing."""
    for name in DEVICE_WIDE:
        original = getattr(module, name, None)
        if original is not None and not hasattr(original, "is_guarded"):
            setattr(module, name, gate.guarding(original))
