"""Splits a batch of images and videos into calls so that their measured times add up to least.

A call runs on a *rung* (a recorded size, its time measured) or directly (its time given by a
function). An item is never split, and no dimension of a rung is exceeded. Packing moves items
about: :meth:`Packing.restore` brings results, and whatever belongs to them, back into the order
of the caller. Knows no tensors.

Small batches are solved exactly (the cheapest of all partitions). Larger ones are split along one
order, largest first; the result is the cheapest of all splits of that order, and never costlier
than one call for each item or one call for all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple, TypeVar

from ostinato.errors import ConfigError

T = TypeVar("T")

EXACT_UP_TO = 7  # items: about 3 ** 7 / 2 steps, within a millisecond
ALIKE = 1.1
"""So much more than a direct call a rung may be estimated to take that runs the direct call's own
kernels on its own rows: it is never slower, whatever noise was in the two measurements.
"""
SPLIT = 0.95
"""Several calls are to take less than this share of the time of one call that serves all: what is
nearer is noise.
"""
_LONGEST_RUN = 64  # items of one call in a larger batch, unless one call takes them all


class Load(NamedTuple):
    """What an item, or a call, takes of each packing dimension; also what a rung holds."""

    num_tokens: int  # patch rows
    num_segments: int = 1  # attention segments: frames
    num_windows: int = 0  # of attention windows, or of what the caller counts instead
    num_items: int = 1
    longest: int = 0  # rows of a segment; of several loads the largest, not the sum
    num_pairs: int = 0  # rows that attend to each other: the segments' squared lengths

    def plus(self, other: Load) -> Load:
        """Both together."""
        return Load(
            self[0] + other[0],
            self[1] + other[1],
            self[2] + other[2],
            self[3] + other[3],
            max(self[4], other[4]),
            self[5] + other[5],
        )

    def fits(self, capacity: Load) -> bool:
        """Whether no dimension exceeds ``capacity``; pairs are none."""
        return (
            self[0] <= capacity[0]
            and self[1] <= capacity[1]
            and self[2] <= capacity[2]
            and self[3] <= capacity[3]
            and self[4] <= capacity[4]
        )


EMPTY = Load(0, 0, 0, 0)


@dataclass(frozen=True)
class Rung:
    """A recorded size: what it holds, and the measured time of one replay.

    The time was taken with ``capacity.num_pairs``; each pair fewer saves ``pair_us``. ``tail``:
    what the padding takes of it when a call does not fill its rows; it is one segment.
    ``can_pad``: False when calls must fill its rows. ``source``: what the caller knows it by.
    """

    capacity: Load
    time_us: float
    tail: Load = EMPTY
    can_pad: bool = True
    source: Any = None
    pair_us: float = 0.0

    @property
    def least_us(self) -> float:
        """No call takes less."""
        return self.time_us - self.pair_us * self.capacity.num_pairs

    def time_of(self, load: Load) -> float:
        """Estimated microseconds of a call of ``load``."""
        spare = self.capacity.num_tokens - load.num_tokens
        saved = self.capacity.num_pairs - load.num_pairs - spare * spare
        return self.time_us - self.pair_us * max(saved, 0)

    def unpadded_us(self, load: Load) -> float:
        """What a call of ``load`` alone keeps the GPU busy, by this rung's time."""
        share = load.num_tokens / self.capacity.num_tokens
        return self.least_us * share + self.pair_us * load.num_pairs

    def is_alike(self, load: Load) -> bool:
        """Whether a direct call of ``load`` runs the same kernels on as many rows; attention has
        kernels of its own for one segment.
        """
        ours = self.capacity
        is_full = load.num_tokens == ours.num_tokens
        return is_full and (load.num_segments == 1) == (ours.num_segments == 1)

    def holds(self, load: Load) -> bool:
        """Whether a call of ``load`` can run on it."""
        if load.num_tokens == self.capacity.num_tokens:
            return load.fits(self.capacity)
        return self.can_pad and load.plus(self.tail).fits(self.capacity)


@dataclass(frozen=True)
class Call:
    """Items that share one call, by their places in the caller's batch; rung ``None``: direct."""

    items: tuple[int, ...]
    load: Load
    rung: Rung | None
    time_us: float


@dataclass(frozen=True)
class Packing:
    """The calls to make, in this order."""

    calls: tuple[Call, ...]

    @property
    def time_us(self) -> float:
        """Sum of the calls' times."""
        return sum(call.time_us for call in self.calls)

    @property
    def order(self) -> tuple[int, ...]:
        """Places in the caller's batch, in the order in which the calls serve them."""
        return tuple(item for call in self.calls for item in call.items)

    def split(self, side_data: Sequence[T]) -> list[list[T]]:
        """``side_data`` (one entry per item, caller's order) dealt out to the calls."""
        num_items = len(self.order)
        if len(side_data) != num_items:
            raise ConfigError(f"{len(side_data)} entries for {num_items} items")
        return [[side_data[item] for item in call.items] for call in self.calls]

    def restore(self, results: Iterable[Iterable[T]]) -> list[T]:
        """Results per call, in the order of :attr:`calls` -> one per item, caller's order."""
        placed: dict[int, T] = {}
        for call, of_call in zip(self.calls, results, strict=True):
            placed.update(zip(call.items, of_call, strict=True))
        return [placed[item] for item in range(len(placed))]


class Packer:
    """Packs batches for one set of rungs. Immutable; any thread may use it.

    ``rungs``: in any order. ``direct_us``: the time of a direct call of a load in microseconds,
    given how long it keeps the GPU busy as far as a rung's time says (``inf``: no rung holds it);
    a direct call can serve anything.
    """

    def __init__(self, rungs: Sequence[Rung], direct_us: Callable[[Load, float], float]) -> None:
        for rung in rungs:
            if not rung.least_us >= 0:
                raise ConfigError(f"a rung's time must be at least 0 us, got {rung.least_us}")
        self._rungs = tuple(sorted(rungs, key=lambda rung: (rung.least_us, rung.capacity)))
        # No rung before the first place that holds enough tokens can fit.
        self._most_tokens = list(accumulate((r.capacity.num_tokens for r in self._rungs), max))
        self._of_tokens: dict[int, list[Rung]] = {}
        for rung in self._rungs:
            self._of_tokens.setdefault(rung.capacity.num_tokens, []).append(rung)
        self._direct_us = direct_us

    def cheapest(self, load: Load) -> tuple[float, Rung | None]:
        """Time and rung of the cheapest single call for ``load``; ``None``: a direct call."""
        direct_us = self._direct_us(load, inf)
        compared_us, best = direct_us, None
        for rung in self._of_tokens.get(load.num_tokens, ()):
            if rung.is_alike(load) and rung.holds(load):
                time_us = rung.time_of(load) / ALIKE
                if time_us < compared_us or (best is None and time_us == compared_us):
                    compared_us, best = time_us, rung
        for place in range(bisect_left(self._most_tokens, load.num_tokens), len(self._rungs)):
            rung = self._rungs[place]
            if rung.least_us > compared_us:
                break
            if rung.holds(load):
                time_us = rung.time_of(load)
                if time_us < compared_us or (best is None and time_us == compared_us):
                    compared_us, best = time_us, rung
        if best is not None:
            # Other rungs' times may have been taken at another clock than this one's.
            direct_us = self._direct_us(load, best.unpadded_us(load))
            if compared_us <= direct_us:
                return best.time_of(load), best
        return direct_us, None

    def pack(self, items: Sequence[Load]) -> Packing:
        """Serve every item exactly once: in one call, or at the least sum of times that is found
        if that is clearly less.
        """
        if not items:
            return Packing(())
        together = self._call(list(range(len(items))), items)
        if len(items) == 1:
            return Packing((together,))
        places = sorted(range(len(items)), key=lambda place: -items[place].num_tokens)
        ordered = [items[place] for place in places]
        search = self._all_partitions if len(items) <= EXACT_UP_TO else self._splits_in_order
        found = Packing(
            tuple(
                self._call(sorted(places[i] for i in group), [ordered[i] for i in group])
                for group in search(ordered)
            )
        )
        return Packing((together,)) if together.time_us * SPLIT <= found.time_us else found

    def _call(self, places: list[int], loads: Iterable[Load]) -> Call:
        load = _total(loads)
        time_us, rung = self.cheapest(load)
        return Call(tuple(places), load, rung, time_us)

    def _all_partitions(self, items: Sequence[Load]) -> list[list[int]]:
        """The cheapest of all ways to partition: subsets are bit masks over ``items``."""
        num_subsets = 1 << len(items)
        loads = [EMPTY] * num_subsets
        costs = [0.0] * num_subsets
        best = [0.0] * num_subsets
        chosen = [0] * num_subsets
        for subset in range(1, num_subsets):
            lowest = subset & -subset
            rest = subset ^ lowest
            loads[subset] = loads[rest].plus(items[lowest.bit_length() - 1])
            costs[subset] = least_us = self.cheapest(loads[subset])[0]
            call = subset
            others = rest
            while others:  # what is left to further calls, when `lowest` goes with the remainder
                time_us = best[others] + costs[subset ^ others]
                if time_us < least_us:
                    least_us, call = time_us, subset ^ others
                others = (others - 1) & rest
            best[subset], chosen[subset] = least_us, call
        groups = []
        subset = num_subsets - 1
        while subset:
            call = chosen[subset]
            groups.append([bit for bit in range(len(items)) if call >> bit & 1])
            subset ^= call
        return groups

    def _splits_in_order(self, items: Sequence[Load]) -> list[list[int]]:
        """The cheapest split of ``items`` into runs of neighbours."""
        best = [0.0]
        begins = [0]
        for end in range(1, len(items) + 1):
            load, least_us, begin = EMPTY, float("inf"), end - 1
            for start in range(end - 1, max(-1, end - 1 - _LONGEST_RUN), -1):
                load = load.plus(items[start])
                time_us = best[start] + self.cheapest(load)[0]
                if time_us < least_us:
                    least_us, begin = time_us, start
            best.append(least_us)
            begins.append(begin)
        groups: list[list[int]] = []
        end = len(items)
        while end:
            groups.append(list(range(begins[end], end)))
            end = begins[end]
        return groups[::-1]


class OneByOne(Packer):
    """Each item has a call to itself, on the first rung that holds it, in the caller's order."""

    def __init__(self, rungs: Sequence[Rung]) -> None:
        super().__init__(rungs, lambda load, busy_us: inf)

    def pack(self, items: Sequence[Load]) -> Packing:
        return Packing(tuple(self._call([place], [load]) for place, load in enumerate(items)))


def _total(loads: Iterable[Load]) -> Load:
    total = EMPTY
    for load in loads:
        total = total.plus(load)
    return total
