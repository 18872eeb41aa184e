"""The recordings of one region, and when further ones are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.family import Family, Rung, family_key
from ostinato.recording.key import NUM_OWN_MODES, Key, call_of, describe_call, numeric_modes
from ostinato.recording.lane import log
from ostinato.recording.ledger import Ledger
from ostinato.recording.order import GateSet, Order
from ostinato.recording.region import GateCall, Region
from ostinato.recording.request import Request
from ostinato.recording.spec import TensorSpec
from ostinato.recording.stats import Counters
from ostinato.recording.store import Section

if TYPE_CHECKING:
    from ostinato.recording.runner import Runner

MAX_COUNTED_KEYS = 65_536
MAX_KNOWN_KEYS = 4096
MAX_STRAY_CALLS = 8
"""After so many calls in a row that read other Python values each, it is said that they change."""
MAX_REFUSED_VARIANTS = 3
"""After so many refusals under other Python values a call is not tried again."""

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
        self._num_strays: Counter[Key] = Counter()
        self._num_refusals: dict[Key, int] = {}
        self._pending: set[Hashable] = set()

    def family(self, key: Key) -> Family:
        """The rungs for calls like ``key``; made at first sight."""
        at = family_key(self._region, key)
        found = self._families.get(at)
        if found is None:
            found = Family(self._region, at, self._config.ladder_ratio)
            self._families[at] = found
        return found

    def keeps_being_refused(self, key: Key) -> bool:
        """True, and the key denied, when the call was refused under several Python values."""
        if self._num_refusals.get(_steady(key), 0) < MAX_REFUSED_VARIANTS:
            return False
        self.denied[key] = "the region's Python values keep changing, and it was refused each time"
        return True

    def count_hit(self, key: Key) -> int:
        """How often the key was asked for and not yet there, this time included."""
        if len(self._hits) >= MAX_COUNTED_KEYS:
            self._hits.clear()
            self._num_strays.clear()
        self._hits[key] = self._hits.get(key, 0) + 1
        if self._hits[key] == 1:
            self._num_strays[_steady(key)] += 1
        else:
            self._num_strays.pop(_steady(key), None)
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
        if self._num_strays[_steady(request.key)] >= MAX_STRAY_CALLS:
            changes = "; ".join(self._ledger.changes[:3])
            return f"the Python values that it reads change with every call: {changes}"
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
            else self._make(request, key, named, lambda: self.exact.get(key), self._keep_exact)
        )
        if isinstance(made, str):
            self.denied[key] = made
            steady = _steady(key)
            self._num_refusals[steady] = self._num_refusals.get(steady, 0) + 1
            return None
        return made

    def _keep_exact(self, entry: Entry) -> None:
        if len(self.exact) >= MAX_KNOWN_KEYS:
            for key in [k for k, e in self.exact.items() if not e.is_alive]:
                del self.exact[key]
        self.exact[entry.key] = entry

    def record_rung(self, family: Family, rung: Rung, request: Request) -> Entry | None:
        """Record one rung now from an example of any size up to it; None when refused."""
        sizes = family.sizes_of(rung)
        made = self._make(
            request,
            family.key_of(rung),
            {axis.name: n for axis, n in sizes.items()},
            lambda: family.entries.get(rung),
            lambda made: family.keep(rung, made),
            rung=sizes,
            result_growth=self._region.result_growth or family.result_growth,
        )
        if isinstance(made, str):
            family.denied[rung] = made
            return None
        if made.direct_us is not None:
            example = self._region.sizes_of(request.tensors)
            family.direct_times.add(example[self._region.axes[0]], made.direct_us)
        return made

    def worth_recording(self, family: Family) -> list[Rung]:
        """The rungs of a warm-up, largest first: the whole ladder, or, where an earlier process
        left word, the top and those that served calls. Others are recorded when they are wanted.
        """
        rungs = family.all_rungs()
        used = set(self._remembered.used_rungs(family.key))
        return [rung for rung in rungs if rung == rungs[0] or rung in used] if used else rungs

    def note_use(self, family: Family, rung: Rung) -> None:
        """A rung has served its first call."""
        self._remembered.keep_rung(family.key, rung)

    def later(
        self,
        what: Hashable,
        request: Request,
        make: Callable[[Request], Any],
        *,
        is_served: bool,
    ) -> None:
        """Make a recording once the lane is idle, from copies of this call's inputs.

        ``is_served``: another recording serves such calls meanwhile, so there is time for it.
        """
        if what in self._pending:
            return
        self._pending.add(what)
        copied = request.with_copies(self._region.in_place)
        device_type = self._runner.device.type

        def job() -> None:
            try:
                # the process's switches may have changed since; the thread's are entered anew
                if numeric_modes(device_type)[NUM_OWN_MODES:] == request.key.modes[NUM_OWN_MODES:]:
                    make(copied)
            finally:
                self._pending.discard(what)

        self._runner.lane.run_when_idle(job, is_long=is_served)

    def _make(
        self,
        request: Request,
        key: Key,
        gate_sizes: Mapping[str, int],
        find: Callable[[], Entry | None],
        keep: Callable[[Entry], None],
        **more: Any,
    ) -> Entry | str:
        """A recording, or why there is none.

        ``find`` tells whether another thread has made it, ``keep`` puts it in service; both run on
        the lane's thread, so that nothing is recorded twice.
        """
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
                gate_sets=[self._gate_set(call, key, "rung" not in more) for call in gate_calls],
                direct=request.direct,
                known_times=self._remembered.times(key),
                direct_us=request.direct_us,
                **more,
            )
            entry = self._runner.make(order, self._counters, find, keep)
        except RecordingRefused as refused:
            log.warning("%s: served directly: %s", self._region.name, refused)
            self._counters.add("num_refused", 1)
            if refused.rule in LASTING_RULES:
                self._remembered.keep_refusal(key, str(refused))
            return str(refused)
        except torch.OutOfMemoryError as error:
            self._counters.add("num_refused", 1)
            return f"out of memory while recording: {str(error).splitlines()[0]}"
        except Exception as error:  # the callable's own, or of a trial at another size
            log.warning("%s: served directly: %r while recording", self._region.name, error)
            self._counters.add("num_refused", 1)
            first = (str(error).splitlines() or [""])[0]
            return f"{type(error).__name__} while recording: {first}"
        self._remembered.keep_times(key, entry.recorded_us, entry.direct_us)
        return entry

    def _gate_set(self, call: GateCall, key: Key, is_exact: bool) -> GateSet:
        structure, tensors = call_of(call.args, call.kwargs)
        if structure != key.structure:
            raise RecordingRefused(
                f"a gate input has the structure {describe_call(structure)}; expected "
                f"{describe_call(key.structure)}",
                rule="gate-inputs",
            )
        for i, (given, spec) in enumerate(zip(tensors, key.specs, strict=True)):
            found = TensorSpec.of(given)
            if is_exact and (found.shape, found.stride) != (spec.shape, spec.stride):
                raise RecordingRefused(
                    f"tensor {i} of a gate input is {found}; expected {spec}", rule="gate-inputs"
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
        for some in (self.exact, self._families, self.denied, self._hits, self._num_refusals):
            some.clear()
        self._num_strays.clear()


def rung_of(family_axes: Sequence[Any], sizes: Mapping[Any, int]) -> Rung:
    """Sizes by axis as the tuple that families count by."""
    return tuple(sizes[axis] for axis in family_axes)


def _steady(key: Key) -> Key:
    """The key without the variant of the Python values, which may change with every call."""
    return key._replace(generation=0)
