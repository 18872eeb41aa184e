"""How calls were served and why: one route per call, counters, a frozen snapshot."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

RouteName = Literal["exact", "rung", "direct"]


class Route(NamedTuple):
    """How one call was served, and why.

    ``rung`` holds the sizes of the recording that served a padded call, by axis name.
    """

    route: RouteName
    reason: str
    rung: tuple[tuple[str, int], ...] = ()


EXACT = Route("exact", "recorded")


@dataclass(frozen=True)
class Stats:
    """A snapshot. Bytes are those of the whole device's recordings where it says ``device``."""

    calls: Mapping[str, int]
    """Route -> number of calls."""
    reasons: Mapping[str, int]
    """``"route: reason"`` -> number of calls."""
    num_recordings: int
    num_recorded: int
    num_refused: int
    num_evicted: int
    recording_seconds: float
    rows_served: int
    rows_padded: int
    bytes_held: int
    device_bytes_held: int
    budget_bytes: int
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Printed key -> why it is served directly."""

    @property
    def waste(self) -> float:
        """Padded rows as a share of all rows that rungs computed."""
        total = self.rows_served + self.rows_padded
        return self.rows_padded / total if total else 0.0


class Counters:
    """Counts from any thread; nothing is lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._routes: Counter[Route] = Counter()
        self._numbers: Counter[str] = Counter()
        self._last = threading.local()
        self._num_exact = 0

    def count_exact(self) -> None:
        """One call was served by its exact recording; the caller holds the lane's lock."""
        self._num_exact += 1
        self._last.route = EXACT

    def count_rows(self, num_real: int, num_padding: int) -> None:
        """Rows that one call of a rung computed."""
        with self._lock:
            self._numbers["rows_served"] += num_real
            self._numbers["rows_padded"] += num_padding

    def count(self, route: Route) -> None:
        """One call was served like this, on this thread."""
        with self._lock:
            self._routes[route] += 1
        self._last.route = route

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self._numbers[name] += amount  # type: ignore[assignment]

    def last(self) -> Route | None:
        """The route of this thread's last call."""
        return getattr(self._last, "route", None)

    def routes(self) -> dict[Route, int]:
        with self._lock:
            return {**self._routes, EXACT: self._num_exact}

    def number(self, name: str) -> float:
        with self._lock:
            return self._numbers[name]
