"""Which rungs to record because requests ask for them: counts only, no tensors, no recordings.

A rung of the ladder that nobody recorded, or that was evicted, is wanted after a few calls; a size
that comes often is wanted without padding. Each attempt makes the next one wait for more calls, so
that a budget too small for the load does not lead to recording without end.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

from ostinato.recording.config import GraphConfig
from ostinato.vision.contract import Layout, Rung, VisionConfig
from ostinato.vision.padding import fits
from ostinato.vision.rungs import exact_rung

MAX_COUNTED = 4096
PATIENCE = 4
"""After each attempt a rung must be wanted so many times more often."""

MAX_ATTEMPTS = 8


class Demand:
    """Used from any thread."""

    def __init__(self, tower: VisionConfig, config: GraphConfig, rungs: Sequence[Rung]) -> None:
        self._tower = tower
        self._config = config
        self._rungs = sorted(rungs, key=lambda r: (r.num_patches, r.num_segments))
        self._sizes = [rung.num_patches for rung in self._rungs]
        self._candidates: dict[Rung, tuple[tuple[Rung, int], ...]] = {}
        self._counts: dict[Rung, int] = {}
        self._attempts: dict[Rung, int] = {}
        self._pending: set[Rung] = set()
        self._lock = threading.Lock()

    def note(self, layout: Layout, find: Callable[[Rung], object | None]) -> list[Rung]:
        """Count a served layout; the rungs to record now. ``find``: a rung's recording, or None."""
        candidates = self._candidates.get(layout.size)
        if candidates is None:
            candidates = self._candidates_for(layout)
        wanted = [(rung, hits) for rung, hits in candidates if find(rung) is None]
        if not wanted:
            return []
        with self._lock:
            return [rung for rung, hits in wanted if self._is_due(rung, hits)]

    def _candidates_for(self, layout: Layout) -> tuple[tuple[Rung, int], ...]:
        """What such a layout may be recorded by, each with the number of calls that it takes."""
        found: list[tuple[Rung, int]] = []
        mode, config = self._config.mode, self._config
        fitting = self._fitting(layout) if mode in ("auto", "ladder") else None
        if fitting is not None:
            found.append((fitting, config.min_hits))
        if mode in ("auto", "exact") and layout.size.num_patches <= self._sizes[-1]:
            exact = exact_rung(self._tower, layout.size)
            if exact != fitting:
                found.append((exact, config.min_hits if mode == "exact" else config.promote_hits))
        with self._lock:
            if len(self._candidates) >= MAX_COUNTED:
                self._candidates.clear()
            self._candidates[layout.size] = tuple(found)
        return tuple(found)

    def _fitting(self, layout: Layout) -> Rung | None:
        """The smallest rung of the ladder that holds the layout."""
        start = bisect_left(self._sizes, layout.size.num_patches)
        return next((rung for rung in self._rungs[start:] if fits(layout, rung)), None)

    def _is_due(self, rung: Rung, hits: int) -> bool:
        if rung in self._pending:
            return False
        if len(self._counts) >= MAX_COUNTED:
            self._counts.clear()
        self._counts[rung] = self._counts.get(rung, 0) + 1
        if self._counts[rung] < hits * PATIENCE ** self._attempts.get(rung, 0):
            return False
        del self._counts[rung]
        self._pending.add(rung)
        return True

    def count_attempt(self, rung: Rung) -> None:
        """A recording of the rung is tried now."""
        with self._lock:
            if len(self._attempts) >= MAX_COUNTED:
                self._attempts.clear()
            self._attempts[rung] = min(self._attempts.get(rung, 0) + 1, MAX_ATTEMPTS)

    def forget(self, rung: Rung) -> None:
        """The attempt is over."""
        with self._lock:
            self._pending.discard(rung)
