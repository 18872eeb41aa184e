"""Exact recording, padded recording or direct call: whichever was measured to be fastest.

Pure arithmetic over measured times; whoever measures gives the clock. Without times (the tape,
where speed is not the point) every recording is admissible and an exact one is preferred.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

KEEP_SHARE = 1.02
"""A recording may take this share of the direct call's time. What fills the device takes the same
time both ways but for noise; a recording then still leaves the host free and its time steady.
"""


@dataclass
class DirectTimes:
    """Measured times of direct calls over size, and a cautious estimate in between."""

    _points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, size: int, microseconds: float) -> None:
        self._points = [p for p in self._points if p[0] != size]
        insort(self._points, (size, microseconds))

    def estimate(self, size: int) -> float | None:
        """Linear between neighbours; beyond the ends the nearest one, since launch overhead is
        flat.
        """
        if not self._points:
            return None
        at = bisect_left(self._points, (size, 0.0))
        if at == 0:
            return self._points[0][1]
        if at == len(self._points):
            return self._points[-1][1]
        (s0, t0), (s1, t1) = self._points[at - 1], self._points[at]
        return t0 + (t1 - t0) * (size - s0) / (s1 - s0)


def is_worth_it(recorded_us: float | None, direct_us: float | None) -> bool:
    """True unless the direct call was measured to be faster by more than noise."""
    if recorded_us is None or direct_us is None:
        return True
    return recorded_us <= direct_us * KEEP_SHARE


def best_of(call: Callable[[], None], timer: Callable[[], float], repeats: int = 5) -> float:
    """Least of several measured times, in the timer's unit. ``call`` waits for its own work."""
    best = float("inf")
    for _ in range(repeats):
        start = timer()
        call()
        best = min(best, timer() - start)
    return best
