"""The rungs recorded for one kind of call: which one serves a size best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from ostinato.recording.admission import DirectTimes, is_worth_it
from ostinato.recording.entry import Entry
from ostinato.recording.growth import ResultGrowth
from ostinato.recording.key import Key
from ostinato.recording.ladder import Axis, Ladder
from ostinato.recording.region import Region

Rung = tuple[int, ...]
"""One size for each axis, in the region's order."""


class Family:
    """Calls that differ only in the sizes of the axes, and their recordings."""

    def __init__(self, region: Region, key: Key, ratio: float) -> None:
        self._region = region
        self._axes = region.axes
        self.key = key
        self._ladders: dict[Axis, Ladder] = {axis: axis.ladder(ratio) for axis in self._axes}
        self.entries: dict[Rung, Entry] = {}
        self.denied: dict[Rung, str] = {}
        self.direct_times = DirectTimes()
        self.result_growth: ResultGrowth | None = None

    def fit(self, sizes: Mapping[Axis, int]) -> Rung | None:
        """The smallest rung of the ladders that holds a call of ``sizes``; None above a top."""
        chosen: dict[Axis, int] = {}
        for axis in self._axes:
            rung = self._ladders[axis].fit(max(sizes[axis], 1))
            if rung is None:
                return None
            chosen[axis] = rung
        for axis, needs_spare in self._spares(sizes, chosen).items():
            if needs_spare and chosen[axis] == sizes[axis]:
                rung = self._ladders[axis].fit(sizes[axis] + 1)
                if rung is None:
                    return None
                chosen[axis] = rung
        return tuple(chosen[axis] for axis in self._axes)

    def has(self, rung: Rung) -> bool:
        """True when a rung is recorded or refused; False again when its recording was evicted."""
        entry = self.entries.get(rung)
        return rung in self.denied or (entry is not None and entry.is_alive)

    def keep(self, rung: Rung, entry: Entry) -> None:
        """Put a new recording in service."""
        self.entries[rung] = entry
        self.result_growth = entry.result_growth

    def _spares(self, sizes: Mapping[Axis, int], rung: Mapping[Axis, int]) -> dict[Axis, bool]:
        """Axes whose padding describes the padding of another: the tail needs an entry of its
        own.
        """
        spares: dict[Axis, bool] = {}
        for growth in self._region.grows.values():
            for grows in growth.values():
                if isinstance(grows.fill, Axis):
                    has_tail = sizes[grows.fill] < rung[grows.fill]
                    spares[grows.axis] = spares.get(grows.axis, False) or has_tail
        return spares

    def holds(self, rung: Rung, sizes: Mapping[Axis, int]) -> bool:
        """True when a call of ``sizes`` fits ``rung`` in every axis, the tail's own entry
        included.
        """
        chosen = dict(zip(self._axes, rung, strict=True))
        spares = self._spares(sizes, chosen)
        return all(chosen[a] >= sizes[a] + spares.get(a, False) for a in self._axes)

    def best(self, sizes: Mapping[Axis, int]) -> Entry | None:
        """The recorded rung that serves ``sizes`` in the least time (least volume, where
        untimed).
        """
        able = [
            (e.recorded_us if e.recorded_us is not None else 0.0, prod(rung), e)
            for rung, e in self.entries.items()
            if e.is_alive and self.holds(rung, sizes)
        ]
        return min(able, key=lambda a: a[:2])[2] if able else None

    def is_worth_it(self, entry: Entry, sizes: Mapping[Axis, int]) -> bool:
        """By measured times: the padded recording against a direct call of the call's own size."""
        return is_worth_it(entry.recorded_us, self.direct_times.estimate(sizes[self._axes[0]]))

    def sizes_of(self, rung: Rung) -> dict[Axis, int]:
        return dict(zip(self._axes, rung, strict=True))

    def key_of(self, rung: Rung) -> Key:
        """The key of a rung's recording: this kind of call at the rung's sizes."""
        sizes = self.sizes_of(rung)
        specs = list(self.key.specs)
        for i, growth in self._region.grows.items():
            specs[i] = specs[i].resized({d: g.length(sizes[g.axis]) for d, g in growth.items()})
        return self.key._replace(specs=tuple(specs))

    def all_rungs(self) -> list[Rung]:
        """Every combination of the ladders, largest first."""
        rungs: list[Rung] = [()]
        for axis in self._axes:
            rungs = [(*head, size) for head in rungs for size in self._ladders[axis].rungs]
        return sorted(rungs, key=lambda r: (prod(r), r), reverse=True)

    def enlarge(self, tensors: Sequence[torch.Tensor], rung: Rung) -> list[torch.Tensor]:
        """The example cut to what a rung holds, where it is larger; floating inputs
        only are cut.
        """
        sizes = self.sizes_of(rung)
        fitted = list(tensors)
        for i, growth in self._region.grows.items():
            for dim, grows in growth.items():
                most = grows.length(sizes[grows.axis])
                if fitted[i].shape[dim] > most:
                    fitted[i] = fitted[i].narrow(dim, 0, most)
        return fitted


def family_key(region: Region, key: Key) -> Key:
    """The key with every growing dimension wiped out, so that sizes of one kind meet."""
    specs = list(key.specs)
    for i, growth in region.grows.items():
        specs[i] = specs[i].resized(dict.fromkeys(growth, 0))
    return key._replace(specs=tuple(specs))
