"""What calls of a tower are expected to take: measured times, scaled to a call's rows and segments.

Numbers only: recordings and tensors are elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median

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

FAVOUR = 1.03
"""So much more than what the GPU does in a direct call a rung may be estimated to take: padding of
some 5 %. (A direct call is 1.5 % longer than that; a rung is to take 2 % more than one at most.)
"""

NEAR = 1.3
"""Recordings up to so many times as large, or as small, are expected to take as long for each
operation.
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
        self._recorded: dict[Rung, float] = {}
        self._smooth: dict[Rung, float] = {}
        self._largest_recorded = 0
        self._replayed = DirectTimes()

    def add_direct(self, num_patches: int, microseconds: float) -> None:
        """A direct call of one segment was measured."""
        self._direct.add(num_patches, microseconds)
        self._launching_us = min(self._launching_us, microseconds)
        self._largest_direct = max(self._largest_direct, num_patches)

    def add_recorded(self, rung: Rung, microseconds: float) -> None:
        """A recording was measured with the longest segment that it holds.

        A card that has rested is some 7 % faster than one that has not (H200, 12,544 patches), and
        noise is added to that. The recording that was measured to be fastest would serve what
        others pad less. So what it takes for an operation is the median of its own pace and of its
        neighbours' of the same kind.
        """
        self._recorded[rung] = microseconds
        kind = _kind(rung)
        like = sorted((r for r in self._recorded if _kind(r) == kind), key=lambda r: r.num_patches)
        sizes = [r.num_patches for r in like]
        medians = _medians(sizes, [self._recorded[r] / self._work_of(r) for r in like])
        for one, pace in zip(like, medians, strict=True):
            self._smooth[one] = pace * self._work_of(one)
        paces: dict[int, float] = {}
        for one, smooth_us in self._smooth.items():
            if one.max_segment >= one.num_patches:
                pace = smooth_us / self._work_of(one)
                known = paces.get(one.num_patches, pace)  # of a recording for more segments
                paces[one.num_patches] = min(pace, known)
        self._largest_recorded = max(paces, default=0)
        self._replayed = DirectTimes(sorted(paces.items()))

    def recorded_us(self, rung: Rung) -> float | None:
        """What a recording is expected to take with the longest segment that it holds."""
        return self._smooth.get(rung)

    def direct_us(self, load: Load, busy_us: float = inf, *, is_any_recorded: bool) -> float:
        """Of a direct call: what launching takes at least, or what the GPU does, if that is more.

        What the GPU does is known from recordings (time for each operation, between measured sizes)
        and from direct calls, whichever says less; ``busy_us`` is what the rung that might serve
        says of the call's own rows. Above the sizes measured it takes a little more than in
        proportion, so that large items are not joined to calls that need much memory.
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
            found.append(pace * work * _beyond(rows, self._largest_recorded, 0.25))
        if not found:
            once = UNTIMED_CALL * _beyond(rows, self._top, 1.25)
            return 10 * (once + rows) if is_any_recorded else once
        gpu_us = FAVOUR * min(*found, busy_us)
        if measured is None:
            return gpu_us
        largest = max(self._largest_direct, self._largest_recorded)
        launching_us = self._launching_us * _beyond(rows, largest, 1.25)
        return max(gpu_us, SURE * launching_us)

    def _work_of(self, rung: Rung) -> float:
        longest = min(rung.max_segment, rung.num_patches)
        return self._work.of_rows(rung.num_patches, rung.num_patches * longest)

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


def _kind(rung: Rung) -> tuple[int, int]:
    """Recordings of one kind run the same kernels: as many segments, all long or all as short."""
    return rung.num_segments, rung.max_segment if rung.max_segment < rung.num_patches else 0


def _medians(sizes: Sequence[int], paces: Sequence[float]) -> list[float]:
    """Each pace the median of itself and of one or two neighbours on either side that are near.

    ``sizes`` ascend. What rises or falls with size stays as it is.
    """
    found = []
    for place, size in enumerate(sizes):
        reach = next(
            reach
            for reach in (2, 1, 0)
            if reach <= place < len(sizes) - reach
            and size <= NEAR * sizes[place - reach]
            and sizes[place + reach] <= NEAR * size
        )
        found.append(median(paces[place - reach : place + reach + 1]))
    return found
