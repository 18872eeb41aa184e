"""What a recording backend does: warm up, record, replay, free, count its bytes.

A backend records a *body*: a callable without arguments and without result that reads static inputs
and, as its last operations, copies its results into static outputs. Both live in ordinary memory
and belong to the caller; a backend owns temporaries and what it needs to replay, nothing else.
Keys, gates, budgets and routes are other files' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Body = Callable[[], Any]
"""Reads static inputs, writes static outputs. Its result is ignored."""


class Recorded(Protocol):
    """One recorded body, or the pieces of one.

    ``replay()`` enqueues the recorded work on the current stream of the calling thread and does not
    wait. Two replays of one lane must never be in flight together; the lane sees to that.
    """

    @property
    def num_nodes(self) -> int:
        """Recorded operations (tape) or graph nodes (CUDA), all pieces together."""

    @property
    def num_pieces(self) -> int:
        """1 for a recording without direct calls inside."""

    @property
    def bytes_held(self) -> int:
        """Bytes that belong to this recording alone: executables, temporaries outside a pool."""

    def replay(self) -> None: ...

    def free(self) -> None:
        """Release everything; a later ``replay()`` is an error. Calling it twice is allowed."""


class Backend(Protocol):
    """Warms up and records bodies on one lane of one device.

    All methods but ``bytes_held`` are called on the lane's own recording thread.
    """

    @property
    def device(self) -> torch.device: ...

    def warm_up(self, body: Body) -> None:
        """Run the body once, for real, where it will be recorded (stream, pool, thread)."""

    def record(self, body: Body, *, generators: Sequence[torch.Generator] = ()) -> Recorded:
        """Record the body without keeping any effect of it.

        ``generators`` are the private random generators that the body draws from. Raises
        ``RecordingRefused`` (``CaptureFailed`` when the backend gave up half-way); afterwards the
        process is as before: stream, allocator, random state, other recordings.
        """

    def bytes_held(self) -> int:
        """Bytes shared by this lane's recordings (pool segments, each counted once)."""

    def close(self) -> None: ...
