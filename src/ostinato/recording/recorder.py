"""Makes one recording: probe, record, gate, time. Runs on the lane's thread, under its lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording import switches, tree
from ostinato.recording.admission import best_of, is_worth_it
from ostinato.recording.backend import Backend
from ostinato.recording.buffers import StaticInputs, copy_of
from ostinato.recording.cache import Cache, Generation
from ostinato.recording.entry import Entry
from ostinato.recording.examination import Examination
from ostinato.recording.gate import Verdict
from ostinato.recording.order import Order
from ostinato.recording.probe import MAX_STATE_BYTES, Probe, probe, unwatched_probe
from ostinato.recording.results import Results
from ostinato.recording.spec import TensorSpec
from ostinato.recording.undo import HostDraws

TIMED_CALLS = 3
LONG_CALL_S = 0.004
"""A direct call that takes longer is timed twice only: what disturbs it is small against it."""


class _OutOfRoom(Exception):
    """The recording does not fit beside what its generation holds."""


class Recorder:
    """Makes recordings on one lane, into one cache."""

    def __init__(self, backend: Backend, cache: Cache) -> None:
        self._backend = backend
        self._cache = cache

    def record(self, order: Order) -> Entry:
        """Record and check; the entry is in the cache when this returns.

        Raises ``RecordingRefused`` (with ``GateFailed`` and ``CaptureFailed`` below it), or what
        the callable itself raises. Whatever happens, no effect of the trial calls stays.
        """
        with switches.entering(order.key.modes, self._backend.device.type):
            try:
                return self._attempt(order, self._cache.current())
            except _OutOfRoom:
                return self._attempt_alone(order)

    def _attempt_alone(self, order: Order) -> Entry:
        """Once more, in a generation of its own, with every other one retired."""
        try:
            for generation in list(self._cache):
                self._cache.retire(generation)
            return self._attempt(order, self._cache.current())
        except _OutOfRoom:
            limit = self._cache.budget.limit_bytes
            raise RecordingRefused(
                f"the recording alone does not fit the budget of {limit} bytes",
                rule="budget",
                fix="raise GraphConfig.budget_bytes",
            ) from None

    def _attempt(self, order: Order, generation: Generation) -> Entry:
        try:
            return self._make(order, generation)
        except BaseException as error:
            if not isinstance(error, _OutOfRoom):
                generation.is_open = generation.is_open and not _is_half_done(error)
            self._tidy(generation)
            raise

    def _tidy(self, generation: Generation) -> None:
        """After a failure: a generation without recordings gives its pool back at once."""
        if not generation.members:
            self._cache.retire(generation, is_eviction=False)
        else:
            generation.measure()

    def _make(self, order: Order, generation: Generation) -> Entry:
        region, ledger, pool = order.region, order.ledger, generation.pool
        ledger.check()
        snapshot = ledger.snapshot()
        inputs = self._static_inputs(order, generation)
        self._require_room(generation, inputs.num_bytes)
        inputs.load(order.example.tensors, order.rung)
        try:
            made, results = self._probe(order, generation, inputs)
        except BaseException:
            ledger.revert(snapshot)
            raise
        self._require_room(generation, inputs.num_bytes + results.num_bytes)
        before = ledger.check()
        try:
            recorded = pool.record(
                lambda: results.store(order.invoke(inputs.tensors)),
                generators=made.generators,
                is_counted=not _is_known(order),
                is_breakable=region.is_breakable,
            )
        finally:
            made.restore()
        try:
            if ledger.check() != before:
                changes = "; ".join(ledger.changes[:3])
                ledger.revert(snapshot)
                raise RecordingRefused(
                    f"each call changes a Python value, which a replay would not: {changes}",
                    rule="python-state",
                    fix="keep what changes from call to call in a tensor, or outside of the region",
                )
            entry = Entry(
                key=order.key._replace(generation=(before, state.verdicts.number)),
                inputs=inputs,
                results=results,
                recorded=recorded,
                generation=generation,
                writes=sorted(region.writes),
                verdict=Verdict(False, float("nan"), "not checked"),
                rung=order.rung,
                is_random=made.is_random,
                outside=_outside(order, made),
            )
            self._examine(order, entry, made)
        except BaseException:
            recorded.free()
            raise
        self._cache.add(generation, entry)
        ledger.is_relied_on = True
        if self._cache.budget.held() > self._cache.budget.limit_bytes:
            self._shrink(generation, entry)
        return entry

    def _static_inputs(self, order: Order, generation: Generation) -> StaticInputs:
        region = order.region
        specs = order.key.specs
        return StaticInputs(
            [self._on_device(spec) for spec in specs],
            self._backend.device,
            in_place={i: order.tensors[i] for i in sorted(region.in_place)},
            uploads=sorted(region.uploads),
            keeps_uploads=region.keeps_uploads,
            growth=region.grows if order.rung is not None else {},
            shared=generation.shared if region.shares_buffers else None,
        )

    def _on_device(self, spec: TensorSpec) -> TensorSpec:
        return spec._replace(device=self._backend.device)

    def _probe(
        self, order: Order, generation: Generation, inputs: StaticInputs
    ) -> tuple[Probe, Results]:
        region, ledger, host = order.region, order.ledger, HostDraws()
        is_known = _is_known(order) and ledger.is_pure

        def attempt() -> Probe:
            if is_known:
                warmed: Probe = generation.pool.warm_up(
                    lambda: unwatched_probe(lambda: order.invoke(inputs.tensors))
                )
                return warmed
            made: Probe = generation.pool.warm_up(
                lambda: probe(
                    lambda: order.invoke(inputs.tensors),
                    inputs.tensors,
                    state=region.state,
                    writes=region.writes,
                    max_state_bytes=MAX_STATE_BYTES,
                    host=host,
                )
            )
            return made

        made = _unless_others_draw(attempt, host)
        made.restore()
        ledger.is_pure = made.is_pure
        ledger.learn(made.reads, tree.kinds(order.key.structure))
        self._require_watched(order)
        if order.key.modes[1] and order.ledger.requires_grad():
            raise RecordingRefused("a gradient may be needed", rule="grad")
        outside = [*order.ledger.tensors, *made.reads]
        shared = generation.shared if region.shares_buffers else None
        results = Results(made.result, inputs.tensors, outside, shared)
        return replace(made, result=None), results

    @staticmethod
    def _require_watched(order: Order) -> None:
        """A replay would go on with what was read while recording, and nobody would notice."""
        unwatched = order.ledger.unwatched
        if unwatched:
            raise RecordingRefused(
                "; ".join(unwatched[:3]),
                rule="unwatched",
                fix="pass what it holds as an argument, or keep it where no name of the region's "
                "code leads",
            )

    def _require_room(self, generation: Generation, num_bytes: int) -> None:
        generation.measure()
        if not self._cache.retire_others(generation, num_bytes):
            raise _OutOfRoom

    def _shrink(self, generation: Generation, entry: Entry) -> None:
        """The recording turned out larger than foreseen: others go, and if that is not enough, it
        goes.
        """
        if not self._cache.retire_others(generation, 0):
            generation.members.remove(entry)
            entry.free()
            raise _OutOfRoom

    def _examine(self, order: Order, entry: Entry, made: Probe) -> None:
        examination = Examination(order, entry, made, self._backend)
        if order.rung is not None:
            entry.results.require_relations(order.region.grows)
            entry.result_growth = order.result_growth or examination.result_growth()
        if order.config.verify != "off":
            entry.verdict = examination.verdict()
        if self._backend.name == "cuda" and order.region.is_timed:
            entry.recorded_us, entry.direct_us = order.known_times or self._times(
                order, entry, examination
            )
            entry.is_preferred = is_worth_it(entry.recorded_us, entry.direct_us)

    def _times(self, order: Order, entry: Entry, examination: Examination) -> tuple[float, float]:
        """Microseconds of a recorded and of a direct call of the example, best of three, or of two
        long direct ones (the first recorded one warms what only a call touches).
        """
        writes = order.region.writes
        example = [copy_of(t) if i in writes else t for i, t in enumerate(order.example.tensors)]
        sizes = order.region.sizes_of(example) if order.rung is not None else None

        def recorded() -> None:
            entry.serve(example, sizes, borrow=False)
            self._backend.synchronize()

        def direct() -> None:
            examination.run_unpadded()
            self._backend.synchronize()

        recorded_us = 1e6 * best_of(recorded, time.perf_counter, TIMED_CALLS)
        direct_us = order.direct_us
        if direct_us is None:
            first_s = best_of(direct, time.perf_counter, 1)
            further = 1 if first_s > LONG_CALL_S else TIMED_CALLS - 1
            direct_us = 1e6 * min(first_s, best_of(direct, time.perf_counter, further))
        entry.hits = 0
        examination.restore()
        return recorded_us, direct_us


def _is_known(order: Order) -> bool:
    """True for a further recording of our own code: it reads what it reads and takes the streams
    that it takes whatever the size, and that was seen at the first.
    """
    return order.region.is_private and order.ledger.is_relied_on


def _unless_others_draw(attempt: Callable[[], Probe], host: HostDraws) -> Probe:
    """Try again where the host's generators moved: another thread may have drawn from them. Who
    draws each time draws; what it drew is given back then.
    """
    try:
        for is_last in (False, False, True):
            try:
                return attempt()
            except RecordingRefused as refused:
                if is_last or refused.rule != "host-random":
                    raise
    except BaseException:
        host.restore()
        raise
    raise AssertionError("the last attempt returns or raises")


def _outside(order: Order, made: Probe) -> frozenset[int]:
    """Storages that a writing region touches besides its inputs; empty for one that only reads."""
    if not (made.writes or made.input_writes):
        return frozenset()
    held = (*made.reads, *order.ledger.tensors)
    return frozenset(t.untyped_storage().data_ptr() for t in held)


def _is_half_done(error: BaseException) -> bool:
    """True for failures during the capture itself, after which the pool takes no new recording."""
    return isinstance(error, RecordingRefused) and error.rule in _CLOSING_RULES


_CLOSING_RULES = {"capture-failed", "graph-node", "stream-escape", "empty"}
