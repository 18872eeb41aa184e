"""What calls of a tower are expected to take: measured times, scaled to a call's rows and segments.

Numbers only: recordings and tensors are elsewhere.
"""

from __future__ import annotations

from math import inf

from ostinato.recording.admission import DirectTimes
from ostinato.vision.contract import Rung
from ostinato.vision.packing import Load
from ostinato.vision.packing import Rung as TimedRung
from ostinato.vision.work import Work

UNTIMED_CALL = 1000.0
"""Without a clock (the tape) a call costs this many rows, so that packing still prefers
few calls.
"""

SURE = 0.98
"""Share of the least time that a direct call was seen to take which launching alone surely takes.
"""

FAVOUR = 1.005
"""So much more than a direct call a rung may be estimated to take: one that is full serves, though
both are estimated from its own time. (A direct call is 1.5 % longer than what the GPU does in it,
and estimates are wrong by up to 2.6 %: a rung is to take 2 % more than a direct call at most.)
"""


class Estimates:
    """``window``: patches of a full attention window, 0 without; ``top``: of the largest rung."""

    def __init__(self, work: Work, *, window: int, top: int) -> None:
        self._work = work
        self._window = window
        self._top = top
        self._direct = DirectTimes()
        self._largest_direct = 0
        self._launching_us = inf
        self._paces: dict[int, float] = {}
        self._replayed = DirectTimes()

    def add_direct(self, num_patches: int, microseconds: float) -> None:
        """A direct call of one segment was measured."""
        self._direct.add(num_patches, microseconds)
        self._launching_us = min(self._launching_us, microseconds)
        self._largest_direct = max(self._largest_direct, num_patches)

    def add_recorded(self, num_patches: int, microseconds: float) -> None:
        """A recording was measured with one segment of so many patches."""
        pace = microseconds / self._work.of_rows(num_patches, num_patches**2)
        known = self._paces.get(num_patches, pace)  # of a recording for more segments
        self._paces[num_patches] = pace = min(pace, known)
        self._replayed.add(num_patches, pace)

    def direct_us(self, load: Load, busy_us: float = inf, *, is_any_recorded: bool) -> float:
        """Of a direct call: what launching takes at least, or what the GPU does, if that is more.

        What the GPU does is known from recordings (time for each operation, between measured sizes)
        and from direct calls, whichever says less, and is at most ``busy_us``. Above the sizes
        measured it takes a little more than in proportion, so that large items are not joined to
        calls that need much memory.
        """
        rows, pairs = load.num_tokens, load.num_pairs
        found: list[float] = []
        measured = self._direct.estimate(rows)
        pace = self._replayed.estimate(rows)
        if measured is not None and (rows <= self._largest_direct or pace is None):
            share = self._work.share(rows, pairs, rows * rows)
            found.append(measured * share * _beyond(rows, self._largest_direct, 1.25))
        if pace is not None:
            work = self._work.of_rows(rows, pairs)
            found.append(pace * work * _beyond(rows, max(self._paces), 0.25))
        if not found:
            once = UNTIMED_CALL * _beyond(rows, self._top, 1.25)
            return 10 * (once + rows) if is_any_recorded else once
        gpu_us = min(*found, busy_us)
        if measured is None:
            return gpu_us
        largest = max((self._largest_direct, *self._paces))
        launching_us = self._launching_us * _beyond(rows, largest, 1.25)
        return max(FAVOUR * gpu_us, SURE * launching_us)

    def load_of(self, size: Rung) -> Load:
        """What an item takes of a rung; windows as the rows that they leave unused."""
        num_pairs = size.num_segments * size.max_segment**2
        spare = self._spare_rows(size)
        return Load(size.num_patches, size.num_segments, spare, 1, size.max_segment, num_pairs)

    def timed(self, rung: Rung, recorded_us: float | None) -> TimedRung:
        """A rung as packing knows it. The tail takes a segment, and a window that need not be
        full. A rung of short segments is for calls that fill it: a tail might take several.
        """
        rows, longest = rung.num_patches, rung.max_segment
        num_pairs = rows * longest  # of the first example, which it is timed with
        spare = self._spare_rows(rung)
        capacity = Load(rows, rung.num_segments, spare, 1 << 30, longest, num_pairs)
        tail = Load(0, 1, max(self._window - 1, 0), 0)
        can_pad = longest >= rows
        if recorded_us is None:
            return TimedRung(capacity, UNTIMED_CALL + rows, tail, can_pad, source=rung)
        least = self._work.share(rows, 0, num_pairs)
        pair_us = recorded_us * (1 - least) / num_pairs
        return TimedRung(capacity, recorded_us, tail, can_pad, rung, pair_us)

    def _spare_rows(self, size: Rung) -> int:
        """Rows that ``size``'s windows hold beyond its patches: additive over items."""
        return size.num_windows * self._window - size.num_patches if self._window else 0


def _beyond(rows: int, limit: int, power: float) -> float:
    return float(max(1.0, rows / limit) ** power)
