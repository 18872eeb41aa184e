"""What a server serves, and what it gets back: the protocol between HTTP and a model.

Decoded plain values and numpy arrays go in and come out. Nothing here knows a tensor, a recording
or a socket, so a server is tested with a stub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Request:
    """Decoded inputs of one request, by name: plain values and numpy arrays."""

    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Results of one request, and how it was served.

    ``route`` is ``exact``, ``rung`` or ``direct``; ``reason`` is one sentence. ``stage_ms`` holds
    milliseconds per stage (``queue`` is added by the device thread).
    """

    outputs: Mapping[str, np.ndarray[Any, Any]]
    route: str
    reason: str
    stage_ms: Mapping[str, float] = field(default_factory=dict)


class Service(Protocol):
    """One model on one device.

    ``warm_up``, ``serve`` and ``close`` are called by the device thread only. ``snapshot`` and
    ``events`` may be called from any thread at any time and never wait for the device.
    """

    @property
    def name(self) -> str:
        """The name clients use for the model."""

    def warm_up(self) -> None:
        """Everything that must happen before the first request: load, record, check."""

    def serve(self, requests: Sequence[Request]) -> Sequence[Reply | Exception]:
        """Answer requests that arrived together, one result per request in the same order.

        A request that cannot be served gets an exception in its place; its neighbours are served.
        """

    def snapshot(self) -> Mapping[str, float]:
        """Numbers worth a metric by snake_case name (``recordings``, ``recorded_bytes``)."""

    def events(self) -> Sequence[str]:
        """Sentences worth a log line since the last call (recorded, refused, evicted)."""

    def close(self) -> None: ...
