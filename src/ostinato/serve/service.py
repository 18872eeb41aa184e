"""What a server serves, and what it gets back: the protocol between HTTP and a model.

Decoded plain values and numpy arrays go in and come out. Nothing here knows a tensor, a recording
or a socket, so a server is tested with a stub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


def _array_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_array_bytes, value.values())) if isinstance(value, Mapping) else 0


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs of one request (for an encoder: one image or video), by name: plain values, bytes
    and numpy arrays. What ``prepare`` returns is another ``Request``, read by ``serve`` only.
    """

    inputs: Mapping[str, Any]

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays, those in maps included, for the bound of the queue."""
        return _array_bytes(self.inputs)


@dataclass(frozen=True, slots=True)
class Reply:
    """Results of one request, and how it was served.

    ``route`` is ``exact``, ``rung``, ``direct``, or ``cache`` where nothing was computed;
    ``reason`` is one sentence. ``stage_ms`` holds milliseconds per stage (``queue`` is added by the
    device thread). ``facts``: plain values about the result.
    """

    outputs: Mapping[str, np.ndarray[Any, Any]]
    route: str
    reason: str
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Served(Protocol):
    """What every server needs of a model. May be called from any thread at any time and never
    waits for the device.
    """

    @property
    def name(self) -> str:
        """The name clients use for the model."""

    def describe(self) -> Mapping[str, Any]:
        """What a client may want to know of the model: plain values for ``/v1/models``."""

    def snapshot(self) -> Mapping[str, float]:
        """Numbers worth a metric by snake_case name (``recordings``, ``recorded_bytes``)."""

    def events(self) -> Sequence[str]:
        """Sentences worth a log line since the last call (recorded, refused, evicted)."""


class Service(Served, Protocol):
    """One model on one device that answers requests in batches.

    ``warm_up``, ``serve`` and ``close`` are called by the device thread only, ``prepare`` from any
    thread.
    """

    def warm_up(self) -> None:
        """Everything that must happen before the first request: record, check."""

    def prepare(self, requests: Sequence[Request]) -> Sequence[Request | Reply | Exception]:
        """The work before the queue, off the device: one result per request, in order.

        A ``Reply`` is an answer that is there already. A request that cannot be served gets an
        exception in its place.
        """

    def serve(self, requests: Sequence[Request]) -> Sequence[Reply | Exception]:
        """Answer prepared requests that arrived together, one result per request, in order.

        A request that cannot be served gets an exception in its place; its neighbours are served.
        """

    def close(self) -> None: ...
