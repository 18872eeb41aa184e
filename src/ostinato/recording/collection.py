"""The recordings of one region, and when further ones are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ostinato.errors import RecordingRefused
from ostinato.recording import tree
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.family import Family, Rung, family_key
from ostinato.recording.key import Key, call_of
from ostinato.recording.lane import log
from ostinato.recording.ledger import Ledger
from ostinato.recording.order import GateSet, Order
from ostinato.recording.region import GateCall, Region
from ostinato.recording.request import Request
from ostinato.recording.stats import Counters
from ostinato.recording.store import Section

if TYPE_CHECKING:
    from ostinato.recording.runner import Runner

MAX_COUNTED_KEYS = 65_536
LASTING_RULES = frozenset(
    {"host-scalar", "host-read", "boolean-index", "data-dependent", "python-state", "input-write"}
)
"""Refusals that the same code earns in every process; others may be gone next time."""


class Collection:
    """Exact recordings by key, rungs by family, refusals, and what is being recorded off the
    path.
    """

    def __init__(
        self,
        runner: Runner,
        region: Region,
        config: GraphConfig,
        ledger: Ledger,
        counters: Counters,
    ) -> None:
        self._runner = runner
        self._region = region
        self._config = config
        self._ledger = ledger
        self._counters = counters
        name = f"{region.name} {ledger.code_hash}"
        self._remembered = Section(runner.store_for(config), name)
        self.exact: dict[Key, Entry] = {}
        self.denied: dict[Key, str] = {}
        self._families: dict[Key, Family] = {}
        self._hits: dict[Key, int] = {}
        self._pending: set[Hashable] = set()

    def family(self, key: Key) -> Family:
        """The rungs for calls like ``key``; made at first sight."""
        at = family_key(self._region, key)
        found = self._families.get(at)
        if found is None:
            found = Family(self._region, at, self._config.ladder_ratio)
            self._families[at] = found
        return found

    def count_hit(self, key: Key) -> int:
        """How often the key was asked for and not yet there, this time included."""
        if len(self._hits) >= MAX_COUNTED_KEYS:
            self._hits.clear()
        self._hits[key] = self._hits.get(key, 0) + 1
        return self._hits[key]

    def entries(self) -> list[Entry]:
        """Every recording in service."""
        rungs = [e for f in list(self._families.values()) for e in list(f.entries.values())]
        return [e for e in [*list(self.exact.values()), *rungs] if e.is_alive]

    def refusals(self) -> dict[str, str]:
        """Printed key -> reason, of everything that was refused."""
        found = {str(key): reason for key, reason in self.denied.items()}
        for family in self._families.values():
            found |= {str(family.key_of(r)): reason for r, reason in family.denied.items()}
        return found

    def why_not(self, request: Request) -> str:
        """Why a call has no recording."""
        if request.key in self.denied:
            return f"refused: {self.denied[request.key]}"
        if self._region.grows:
            denied = self.family(request.key).denied
            if denied and self._config.mode == "ladder":
                return f"refused: {next(iter(denied.values()))}"
        return "not recorded yet"

    # -- making ---------------------------------------------------------------------------------

    def record_exact(self, request: Request, *, is_ordered: bool = False) -> Entry | None:
        """Record a call's own key now; None when refused, which denies the key.

        ``is_ordered`` also tries what an earlier process could not record.
        """
        key = request.key
        sizes = self._region.sizes_of(request.tensors) if self._region.grows else {}
        named = {axis.name: n for axis, n in sizes.items()}
        known = None if is_ordered else self._remembered.refusal(key)
        made = (
            f"{known} (found by an earlier process)"
            if known is not None
            else self._make(request, key, named, lambda: self.exact.get(key))
        )
        if isinstance(made, str):
            self.denied[key] = made
            return None
        self.exact[made.key] = made
        return made

    def record_rung(self, family: Family, rung: Rung, request: Request) -> Entry | None:
        """Record one rung now from an example of any size up to it; None when refused."""
        sizes = family.sizes_of(rung)
        made = self._make(
            request,
            family.key_of(rung),
            {axis.name: n for axis, n in sizes.items()},
            lambda: family.entries.get(rung),
            rung=sizes,
            result_growth=self._region.result_growth or family.result_growth,
        )
        if isinstance(made, str):
            family.denied[rung] = made
            return None
        family.entries[rung] = made
        family.result_growth = made.result_growth
        if made.direct_us is not None:
            example = self._region.sizes_of(request.tensors)
            family.direct_times.add(example[self._region.axes[0]], made.direct_us)
        return made

    def later(self, what: Hashable, request: Request, make: Callable[[Request], Any]) -> None:
        """Make a recording once the lane is idle, from copies of this call's inputs."""
        if what in self._pending:
            return
        self._pending.add(what)
        copied = request.with_copies(self._region.in_place)

        def job() -> None:
            try:
                make(copied)
            finally:
                self._pending.discard(what)

        self._runner.lane.run_when_idle(job)

    def _make(
        self,
        request: Request,
        key: Key,
        gate_sizes: Mapping[str, int],
        find: Callable[[], Entry | None],
        **more: Any,
    ) -> Entry | str:
        """A recording, or why there is none. ``find`` tells whether another thread has made it."""
        try:
            gate_calls = request.gate_calls
            if gate_calls is None:
                gate_calls = self._region.gate_calls(gate_sizes)
            order = Order(
                region=self._region,
                ledger=self._ledger,
                config=self._config,
                key=key,
                invoke=request.invoke(self._region.fn),
                tensors=request.tensors,
                gate_sets=[self._gate_set(call, key) for call in gate_calls],
                direct=request.direct,
                known_times=self._remembered.times(key),
                **more,
            )
            entry = self._runner.make(order, self._counters, find)
        except RecordingRefused as refused:
            log.warning("%s: served directly: %s", self._region.name, refused)
            self._counters.add("num_refused", 1)
            if refused.rule in LASTING_RULES:
                self._remembered.keep_refusal(key, str(refused))
            return str(refused)
        except torch.OutOfMemoryError as error:
            self._counters.add("num_refused", 1)
            return f"out of memory while recording: {str(error).splitlines()[0]}"
        self._remembered.keep_times(key, entry.recorded_us, entry.direct_us)
        return entry

    def _gate_set(self, call: GateCall, key: Key) -> GateSet:
        structure, tensors = call_of(call.args, call.kwargs)
        if structure != key.structure:
            raise RecordingRefused(
                f"a gate input has the structure {tree.describe(structure)}; expected "
                f"{tree.describe(key.structure)}",
                rule="gate-inputs",
            )
        return GateSet(tensors, call.direct)

    # -- ending ---------------------------------------------------------------------------------

    def give_up(self, entry: Entry, reason: str) -> None:
        """Take one recording out of service for good."""
        if entry.rung is None:
            self.denied[entry.key] = reason
        self._counters.add("num_refused", 1)
        self._runner.cache.drop(entry.generation, entry)

    def clear(self) -> None:
        """Drop every recording and refusal. The caller holds the lane's lock."""
        for entry in self.entries():
            self._runner.cache.drop(entry.generation, entry)
        for some in (self.exact, self._families, self.denied, self._hits):
            some.clear()


def rung_of(family_axes: Sequence[Any], sizes: Mapping[Any, int]) -> Rung:
    """Sizes by axis as the tuple that families count by."""
    return tuple(sizes[axis] for axis in family_axes)
