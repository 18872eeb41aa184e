"""One region in service: from a call to its route.

The way of a call: arguments -> key -> ledger -> recording -> result. What is slow (recording, choosing
among rungs) happens behind ``_choose``, which a call that finds its exact recording never enters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from ostinato.errors import RecordingRefused, RouteUnavailable, UnkeyableArgument
from ostinato.recording import gate, tree
from ostinato.recording.admission import is_worth_it
from ostinato.recording.buffers import duplicate
from ostinato.recording.config import GraphConfig
from ostinato.recording.entry import Entry
from ostinato.recording.family import Family, Rung, family_key
from ostinato.recording.foreign import is_foreign
from ostinato.recording.key import NUM_OWN_MODES, Key, call_of, describe_call, numeric_modes
from ostinato.recording.ladder import Axis
from ostinato.recording.lane import log
from ostinato.recording.ledger import Ledger
from ostinato.recording.recorder import Order
from ostinato.recording.region import Region
from ostinato.recording.routes import forced as forced_route
from ostinato.recording.spec import TensorSpec, describe
from ostinato.recording.stats import EXACT, Counters, Route
from ostinato.state import current as current_activity
from ostinato.state import verdicts

if TYPE_CHECKING:
    from ostinato.recording.runner import Runner

MAX_COUNTED_KEYS = 65_536
MAX_KNOWN_KEYS = 4096
MAX_REFUSED_VARIANTS = 3
"""After so many refusals under other Python values a call is not tried again."""


class Served:
    """A region with its recordings, ledger and counters on one runner."""

    def __init__(self, runner: Runner, region: Region, config: GraphConfig) -> None:
        self.region = region
        self.config = config
        self.counters = Counters()
        self.runner = runner
        self._lane = runner.lane
        self._cache = runner.cache
        self._join = runner.lane.backend.join
        self._device_type = runner.device.type
        self._in_place = tuple(sorted(region.in_place))
        self._written = tuple(sorted(region.writes))
        self._ledger = Ledger(region.fn)
        self._epoch = self._ledger.generation.epoch
        self._exact: dict[Key, Entry] = {}
        self._families: dict[Key, Family] = {}
        self._denied: dict[Key, str] = {}
        self._hits: dict[Key, int] = {}
        self._num_refusals: dict[Key, int] = {}
        self._pending: set[Any] = set()
        self._is_paranoid = config.verify == "paranoid"
        self._is_plain = config.mode in ("auto", "exact") and not self._is_paranoid

    # -- the call -------------------------------------------------------------------------------

    def call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, borrow: bool = False
    ) -> Any:
        """Serve one call by the fastest admissible route."""
        if current_activity() is not None or is_foreign(self._device_type):
            return self.region.fn(*args, **kwargs)
        structure, tensors = call_of(args, kwargs)
        generation = self._ledger.check()
        if generation.epoch != self._epoch:
            self._forget_stale(generation.epoch)
        try:
            specs = tuple([describe(t) for t in tensors])
        except RuntimeError:
            raise UnkeyableArgument(_without_memory(tensors)) from None
        key = Key(
            structure,
            specs,
            numeric_modes(self._device_type),
            (generation, verdicts.number),
            self._addresses(tensors) if self._in_place else (),
        )
        entry = self._exact.get(key)
        if (
            entry is not None
            and entry.is_preferred
            and self._is_plain
            and forced_route() is None
            and not (key.modes[1] and self._ledger.requires_grad())
            and not (self._written and self._share_memory(tensors))
        ):
            lane = self._lane
            if lane.acquire():
                try:
                    if entry.is_alive:
                        return self._replay(entry, tensors, None, EXACT, borrow=borrow)
                finally:
                    lane.lock.release()
        return self._choose(self._printable(key), tensors, args, kwargs, borrow=borrow)

    def _share_memory(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True when a write to one input shows in another: their static copies are apart."""
        storages = [t.untyped_storage().data_ptr() for t in tensors]
        return any(storages.count(storages[i]) > 1 for i in self._written)

    def _addresses(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        return tuple([tensors[i].data_ptr() for i in self._in_place])

    @staticmethod
    def _printable(key: Key) -> Key:
        """The same key (equal, same hash) with specs for plain tuples."""
        return key._replace(specs=tuple([TensorSpec(*spec) for spec in key.specs]))

    def _replay(
        self,
        entry: Entry,
        tensors: Sequence[torch.Tensor],
        sizes: Mapping[Axis, int] | None,
        route: Route,
        *,
        borrow: bool,
    ) -> Any:
        """Replay under the lane's lock, which the caller holds."""
        self._join()
        if entry.is_random:
            self._lane.backend.join_random()
        result = entry.serve(tensors, sizes, borrow=borrow)
        if route is EXACT:
            self.counters.count_exact()
        else:
            self.counters.count(route)
        self._lane.last_used = monotonic()
        self._cache.touch(entry.generation)
        return result

    def _direct(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.counters.count(Route("direct", reason))
        if self.region.uploads:
            args, kwargs = self._uploaded(args, kwargs)
        return self.region.fn(*args, **kwargs)

    def _uploaded(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments with host inputs on the device, for a direct call."""
        tensors: list[torch.Tensor] = []
        tree.flatten((args, dict(kwargs)), tensors)
        device = self.runner.device
        moved = [
            t.to(device, non_blocking=True) if i in self.region.uploads else t
            for i, t in enumerate(tensors)
        ]
        rebuilt = tree.rebuilder((args, dict(kwargs)))(moved)
        return rebuilt[0], rebuilt[1]

    # -- the choice -----------------------------------------------------------------------------

    def _choose(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        borrow: bool,
    ) -> Any:
        forced = forced_route()
        reason = self._reason_for_direct(key, tensors, forced)
        if reason is not None:
            if forced in ("exact", "rung"):
                raise RouteUnavailable(
                    f"{self.region.name}: route {forced!r} is forced, but {reason}"
                )
            return self._direct(reason, args, kwargs)
        chosen: tuple[Entry, Mapping[Axis, int] | None] | None
        chosen = self._rung_for(key, tensors, args, kwargs, forced)
        exact = self._exact_for(key, tensors, args, kwargs, forced)
        if exact is not None and (chosen is None or _is_faster(exact, chosen[0])):
            chosen = (exact, None)
        if chosen is None or not self._is_admitted(chosen, forced):
            why = "direct call is faster" if chosen is not None else self._why_unrecorded(key)
            if forced in ("exact", "rung"):
                raise RouteUnavailable(f"{self.region.name}: route {forced!r} is forced, but {why}")
            return self._direct(why, args, kwargs)
        return self._serve_chosen(chosen, tensors, args, kwargs, borrow=borrow)

    def _serve_chosen(
        self,
        chosen: tuple[Entry, Mapping[Axis, int] | None],
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        borrow: bool,
    ) -> Any:
        entry, sizes = chosen
        if not self._lane.acquire():
            return self._direct("the lane is recording", args, kwargs)
        try:
            if entry.is_alive:
                if self._is_paranoid:
                    return self._compared(entry, tensors, sizes, args, kwargs)
                route = self._route_of(entry, sizes)
                return self._replay(entry, tensors, sizes, route, borrow=borrow)
        finally:
            self._lane.lock.release()
        return self._direct("the recording was evicted", args, kwargs)

    def _route_of(self, entry: Entry, sizes: Mapping[Axis, int] | None) -> Route:
        if sizes is None or entry.rung is None:
            return EXACT
        first = next(iter(entry.rung))
        self.counters.add("rows_served", sizes[first])
        self.counters.add("rows_padded", entry.rung[first] - sizes[first])
        return Route("rung", "padded", tuple((a.name, n) for a, n in entry.rung.items()))

    def _reason_for_direct(
        self, key: Key, tensors: Sequence[torch.Tensor], forced: str | None
    ) -> str | None:
        if self.config.mode == "off":
            return "recording is off"
        if forced == "direct":
            return "forced"
        if key.modes[1] and (any(t.requires_grad for t in tensors) or self._ledger.requires_grad()):
            return "a gradient may be needed"
        if self._written and self._share_memory(tensors):
            return "a written input shares memory with another input"
        for i, t in enumerate(tensors):
            expected = "cpu" if i in self.region.uploads else self._device_type
            if t.device.type != expected:
                return f"input {i} is on {t.device.type}; expected {expected}"
        return None

    def _why_unrecorded(self, key: Key) -> str:
        if key in self._denied:
            return f"refused: {self._denied[key]}"
        family = self._families.get(family_key(self.region, key)) if self.region.grows else None
        if family is not None and family.denied and self.config.mode == "ladder":
            return f"refused: {next(iter(family.denied.values()))}"
        return "not recorded yet"

    def _is_admitted(
        self, chosen: tuple[Entry, Mapping[Axis, int] | None], forced: str | None
    ) -> bool:
        entry, sizes = chosen
        if forced is not None:
            return True
        if sizes is None:
            return is_worth_it(entry.recorded_us, entry.direct_us)
        family = self._families[family_key(self.region, entry.key)]
        return family.is_worth_it(entry, sizes)

    # -- exact recordings -----------------------------------------------------------------------

    def _exact_for(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        forced: str | None,
    ) -> Entry | None:
        """The exact recording, made now or later as the rules of the path say."""
        if self.config.mode == "ladder" and forced != "exact" or forced == "rung":
            return None
        entry = self._exact.get(key)
        if entry is not None and entry.is_alive:
            return entry
        if key in self._denied:
            return None
        if self._num_refusals.get(self._steady(key), 0) >= MAX_REFUSED_VARIANTS:
            self._denied[key] = (
                "the region's Python values keep changing, and it was refused each time"
            )
            return None
        hits = self._count_hit(key)
        if forced == "exact" or (
            hits >= self.config.min_hits and not self.region.grows and not entry
        ):
            return self._record_exact(key, tensors, args, kwargs)
        needed = self.config.promote_hits if self.region.grows else self.config.min_hits
        if hits >= needed:
            self._later(("exact", key), tensors, lambda t: self._record_exact(key, t, args, kwargs))
        return None

    @staticmethod
    def _steady(key: Key) -> Key:
        """The key without the variant of the Python values, which may change with every call."""
        return key._replace(generation=0)

    def _count_hit(self, key: Key) -> int:
        if len(self._hits) >= MAX_COUNTED_KEYS:
            self._hits.clear()
        self._hits[key] = self._hits.get(key, 0) + 1
        return self._hits[key]

    def _record_exact(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Entry | None:
        """Record now; None when refused, which denies the key."""
        sizes = self.region.sizes_of(tensors) if self.region.grows else {}
        named = {a.name: n for a, n in sizes.items()}
        entry = self._record(
            key, tensors, args, kwargs, named, lambda: self._exact.get(key), self._keep_exact
        )
        if isinstance(entry, str):
            self._denied[key] = entry
            steady = self._steady(key)
            self._num_refusals[steady] = self._num_refusals.get(steady, 0) + 1
            return None
        return entry

    def _keep_exact(self, entry: Entry) -> None:
        if len(self._exact) >= MAX_KNOWN_KEYS:
            self._exact = {k: e for k, e in self._exact.items() if e.is_alive}
        self._exact[entry.key] = entry

    def _record(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        gate_sizes: Mapping[str, int],
        find: Callable[[], Entry | None],
        keep: Callable[[Entry], None],
        **more: Any,
    ) -> Entry | str:
        """A recording, or why there is none.

        ``find`` tells whether another thread has made it, ``keep`` puts it in service; both run on the
        lane's thread, so that nothing is recorded twice.
        """
        rebuild = tree.rebuilder((args, dict(kwargs)))
        fn = self.region.fn

        def invoke(given: Sequence[torch.Tensor]) -> Any:
            new_args, new_kwargs = rebuild(given)
            return fn(*new_args, **new_kwargs)

        try:
            is_exact = "rung" not in more
            sets = [
                self._tensors_of(call, key, is_exact) for call in self.region.gate_calls(gate_sizes)
            ]
            order = Order(
                region=self.region,
                ledger=self._ledger,
                config=self.config,
                key=key,
                invoke=invoke,
                tensors=tensors,
                gate_sets=sets,
                **more,
            )
            return self.runner.make(order, self.counters, find, keep)
        except RecordingRefused as refused:
            log.warning("%s: served directly: %s", self.region.name, refused)
            self.counters.add("num_refused", 1)
            return str(refused)
        except torch.OutOfMemoryError as error:
            return f"out of memory while recording: {str(error).splitlines()[0]}"

    def _tensors_of(
        self, call: tuple[tuple[Any, ...], Mapping[str, Any]], key: Key, is_exact: bool
    ) -> list[torch.Tensor]:
        structure, tensors = call_of(*call)
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
        return tensors

    # -- rungs ----------------------------------------------------------------------------------

    def _rung_for(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        forced: str | None,
    ) -> tuple[Entry, Mapping[Axis, int]] | None:
        if not self.region.grows or self.config.mode == "exact" or forced == "exact":
            return None
        sizes = self.region.sizes_of(tensors)
        family = self._family(key)
        wanted = family.fit(sizes)
        if wanted is not None and not family.has(wanted):
            hits = self._count_hit(family.key_of(wanted))
            if forced == "rung":
                self._record_rung(family, wanted, tensors, args, kwargs)
            elif hits >= self.config.min_hits:
                self._later(
                    ("rung", family, wanted),
                    tensors,
                    lambda t: self._record_rung(family, wanted, t, args, kwargs),
                )
        entry = family.best(sizes)
        return (entry, sizes) if entry is not None else None

    def _family(self, key: Key) -> Family:
        at = family_key(self.region, key)
        family = self._families.get(at)
        if family is None:
            family = Family(self.region, at, self.config.ladder_ratio)
            self._families[at] = family
        return family

    def _record_rung(
        self,
        family: Family,
        rung: Rung,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Entry | None:
        sizes = family.sizes_of(rung)
        entry = self._record(
            family.key_of(rung),
            tensors,
            args,
            kwargs,
            {a.name: n for a, n in sizes.items()},
            lambda: family.entries.get(rung),
            lambda made: family.keep(rung, made),
            rung=sizes,
            result_growth=family.result_growth,
        )
        if isinstance(entry, str):
            family.denied[rung] = entry
            return None
        if entry.direct_us is not None:
            example = self.region.sizes_of(tensors)
            family.direct_times.add(example[self.region.axes[0]], entry.direct_us)
        return entry

    # -- off the path ---------------------------------------------------------------------------

    def _later(self, what: Any, tensors: Sequence[torch.Tensor], record: Any) -> None:
        """Record once the lane is idle, from copies of this call's inputs."""
        if what in self._pending:
            return
        switches = numeric_modes(self._device_type)[NUM_OWN_MODES:]
        self._pending.add(what)
        copies = [t if i in self.region.in_place else duplicate(t) for i, t in enumerate(tensors)]

        def job() -> None:
            try:
                if numeric_modes(self._device_type)[NUM_OWN_MODES:] == switches:
                    record(copies)
            finally:
                self._pending.discard(what)

        self._lane.run_when_idle(job)

    # -- weights that moved, warm-up, the end ---------------------------------------------------

    def _forget_stale(self, epoch: int) -> None:
        """Recordings that read moved memory go before anything else happens."""
        with self._lane.lock:
            for entry in self._all_entries():
                self._cache.drop(entry.generation, entry)
            self._exact.clear()
            self._families.clear()
            self._denied.clear()
            self._num_refusals.clear()
            self._hits.clear()
            self._epoch = epoch

    def _all_entries(self) -> list[Entry]:
        rungs = [e for f in list(self._families.values()) for e in f.entries.values()]
        return [e for e in [*self._exact.values(), *rungs] if e.is_alive]

    def _compared(
        self,
        entry: Entry,
        tensors: Sequence[torch.Tensor],
        sizes: Mapping[Axis, int] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Paranoid: serve by replay and directly, return the direct result, refuse on a difference."""
        copies = [t.clone() if i in self.region.writes else t for i, t in enumerate(tensors)]
        result = self._replay(entry, copies, sizes, self._route_of(entry, sizes), borrow=False)
        direct = self.region.fn(*args, **kwargs)
        got: list[torch.Tensor] = []
        want: list[torch.Tensor] = []
        tree.flatten(result, got, "result")
        tree.flatten(direct, want, "result")
        try:
            if sizes is None:
                gate.compare_exact(got, want, None, "a served call")
            else:
                gate.compare_close(got, want, self.config.tolerance, "a served call")
        except RecordingRefused as refused:
            log.error("%s: a recording differs and is given up: %s", self.region.name, refused)
            self.counters.add("num_refused", 1)
            if sizes is None:
                self._denied[entry.key] = str(refused)
            self._cache.drop(entry.generation, entry)
        return direct

    def record(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record now: the exact key, or with a description of what grows the whole ladder.

        Raises ``RecordingRefused`` with the reason when nothing could be recorded.
        """
        structure, tensors = call_of(args, kwargs)
        generation = self._ledger.check()
        if generation.epoch != self._epoch:
            self._forget_stale(generation.epoch)
        key = Key(
            structure,
            tuple(map(TensorSpec.of, tensors)),
            numeric_modes(self._device_type),
            (generation, verdicts.number),
            self._addresses(tensors),
        )
        reason = self._reason_for_direct(key, tensors, None)
        if reason is not None:
            raise RecordingRefused(reason, rule="direct")
        if self.region.grows and self.config.mode != "exact":
            self._record_ladder(key, tensors, args, kwargs)
        else:
            self._denied.pop(key, None)
            if key not in self._exact or not self._exact[key].is_alive:
                self._record_exact(key, tensors, args, kwargs)
            if key in self._denied:
                raise RecordingRefused(self._denied[key], rule="refused")

    def _record_ladder(
        self,
        key: Key,
        tensors: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        family = self._family(key)
        for rung in family.all_rungs():
            if not family.has(rung):
                self._record_rung(family, rung, family.enlarge(tensors, rung), args, kwargs)
        if not family.entries and family.denied:
            raise RecordingRefused(next(iter(family.denied.values())), rule="refused")

    def recordings(self) -> list[Entry]:
        """Every recording that is in service."""
        return self._all_entries()

    def refusals(self) -> dict[str, str]:
        """Printed key -> reason, of everything that was refused."""
        found = {str(key): reason for key, reason in self._denied.items()}
        for family in self._families.values():
            found |= {str(family.key_of(r)): reason for r, reason in family.denied.items()}
        return found

    def close(self) -> None:
        """Free every recording; later calls are served directly."""
        with self._lane.lock:
            for entry in self._all_entries():
                self._cache.drop(entry.generation, entry)
            self._exact.clear()
            self._families.clear()


def _without_memory(tensors: Sequence[torch.Tensor]) -> str:
    layouts = sorted({str(t.layout) for t in tensors if t.layout is not torch.strided})
    return f"an argument is a tensor without addressable memory {layouts}; expected dense, strided tensors"


def _is_faster(exact: Entry, rung: Entry) -> bool:
    if exact.recorded_us is None or rung.recorded_us is None:
        return True
    return exact.recorded_us <= rung.recorded_us
