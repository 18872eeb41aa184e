"""What a recording backend does: warm up, record, replay, free, count its bytes.

A backend records a *body*: a callable without arguments and without result that reads static inputs
and, as its last operations, copies its results into static results. Both live in ordinary memory
and belong to the caller; a backend owns temporaries and what it needs to replay, nothing else.
Keys, gates, budgets and routes are other files' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Body = Callable[[], Any]
"""Reads static inputs, writes static results. What it returns is ignored."""


class Recorded(Protocol):
    """One recorded body, or the pieces of one.

    ``replay()`` enqueues the recorded work on the current stream of the calling thread and does not
    wait. Two replays of one lane must never be in flight together; ``Backend.join`` sees to that.
    """

    @property
    def num_nodes(self) -> int:
        """Recorded operations (tape) or graph nodes (CUDA), all pieces together."""

    @property
    def num_pieces(self) -> int:
        """1 for a recording without direct calls inside."""

    @property
    def bytes_held(self) -> int:
        """Bytes of this recording alone: executables, temporaries outside a shared pool."""

    def replay(self) -> None: ...

    def free(self) -> None:
        """Release everything; a later ``replay()`` is an error. Calling it twice is allowed."""


class Pool(Protocol):
    """The memory that the temporaries of one generation's recordings share."""

    def warm_up(self, body: Body) -> Any:
        """Run the body for real where it will be recorded; returns what the body returns."""

    def record(
        self,
        body: Body,
        *,
        generators: Sequence[torch.Generator] = (),
        is_counted: bool = True,
        is_breakable: bool = False,
    ) -> Recorded:
        """Record the body without keeping any effect of it. ``is_counted``: compare the kernels of
        a direct call with those recorded, where the backend can; else that was done before.

        ``generators`` are the private random generators that the body draws from;
        ``is_breakable``: see ``Region``. Raises
        ``RecordingRefused`` (``CaptureFailed`` when the backend gave up half-way); afterwards the
        process is as before: stream, allocator, random state, other recordings.
        """

    def bytes_held(self) -> int:
        """Bytes of the pool's segments, each counted once."""

    def close(self) -> None:
        """Give the memory back; every recording of the pool has been freed before."""


class Backend(Protocol):
    """Records on one lane of one device.

    ``attach``, ``open_pool`` and everything of a pool run on the lane's own thread; ``join``,
    ``fence`` and ``wait`` run on any thread.
    """

    name: str
    device: torch.device

    def attach(self) -> None:
        """Prepare the calling thread, which stays alive, for all recordings of this lane."""

    def open_pool(self) -> Pool: ...

    def join(self) -> None:
        """Order the caller's current stream after the lane's last replay or job, wherever that
        ran, and the next one after what this stream is given until then.
        """

    def join_random(self) -> None:
        """Also order after the last replay that drew random numbers, on any lane of the device."""

    def fence(self) -> Any:
        """A point in the caller's current stream for ``wait``."""

    def wait(self, fence: Any) -> None:
        """Order the caller's current stream after a fence; the host does not wait."""

    def synchronize(self) -> None:
        """Wait on the host until the current stream is idle."""

    def close(self) -> None: ...
