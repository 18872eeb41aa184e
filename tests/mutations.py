"""Switches protections off, one by one, so that each test can be seen to fail.

A mutation is a function that takes pytest's ``monkeypatch`` and removes one protection. Names are
``"<file>.<what no longer happens>"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Mutation = Callable[[pytest.MonkeyPatch], None]
mutations: dict[str, Mutation] = {}


def mutation(name: str) -> Callable[[Mutation], Mutation]:
    def register(function: Mutation) -> Mutation:
        assert name not in mutations, name
        mutations[name] = function
        return function

    return register


def assert_fails_under(
    name: str, check: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``check`` passes as the code stands and fails with the protection ``name`` switched off."""
    check()
    with monkeypatch.context() as patched:
        mutations[name](patched)
        with pytest.raises((Exception, pytest.fail.Exception)):
            check()


def without_rule(rule: str) -> Mutation:
    """Neither the probe nor the tape looks at one rule any more."""

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        from ostinato.recording.observer import Observer
        from ostinato.recording.tape_recorder import TapeRecorder

        for owner, method in ((Observer, "report_always"), (TapeRecorder, "_refuse")):
            original = getattr(owner, method)

            def report(self: Any, name: str, detail: str, original: Any = original) -> None:
                if name != rule:
                    original(self, name, detail)

            monkeypatch.setattr(owner, method, report)

    return mutate


def _register_rules() -> None:
    from ostinato.recording.rules import RULES

    for rule in RULES:
        mutations[f"rules.{rule}"] = without_rule(rule)


_register_rules()


@mutation("undo.no_clone_before_write")
def _no_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import UndoLog

    monkeypatch.setattr(UndoLog, "before_write", lambda self, tensor: None)


@mutation("undo.shapes_stay")
def _shapes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import UndoLog

    monkeypatch.setattr(UndoLog, "moved", lambda self: iter(()))


@mutation("undo.draws_are_kept")
def _draws_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import RandomUndo

    monkeypatch.setattr(RandomUndo, "restore", lambda self: None)


@mutation("undo.host_draws_are_kept")
def _host_draws_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.undo import HostDraws

    monkeypatch.setattr(HostDraws, "restore", lambda self: None)


@mutation("key.equal_objects_are_two")
def _equal_objects_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import served

    monkeypatch.setattr(served, "repeats_of", lambda tensors: ())


@mutation("key.parameters_are_tensors")
def _parameters_are_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import tree

    monkeypatch.setattr(tree, "PARAMETER", tree.LEAF)


@mutation("calls.schema_is_trusted")
def _schema_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import calls

    monkeypatch.setattr(calls, "_HIDDEN_WRITES", {})


@mutation("calls.composites_stay_whole")
def _composites_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import modes

    monkeypatch.setattr(modes, "is_composite", lambda call: False)


@mutation("tape.no_poison")
def _no_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.tape import Tape

    monkeypatch.setattr(Tape, "fill_temporaries", lambda self: None)


@mutation("tape.callers_modes")
def _callers_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    from ostinato.recording import tape

    monkeypatch.setattr(tape, "_entering", lambda modes: contextlib.nullcontext())


@mutation("tape.callers_autocast")
def _callers_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    import torch

    monkeypatch.setattr(torch._C, "_DisableAutocast", contextlib.nullcontext)


@mutation("tape.results_are_not_copied")
def _results_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entries import Target

    monkeypatch.setattr(Target, "take", lambda self, result: None)


@mutation("tape.live_shapes")
def _live_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries keep the tensors themselves, whose shape a later ``t_`` or ``resize_`` changes."""
    from ostinato.recording import tape_recorder

    monkeypatch.setattr(tape_recorder, "_alias", lambda value: value)


@mutation("tape.freed_tapes_replay")
def _freed_tapes_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.tape import Tape

    monkeypatch.setattr(Tape, "free", lambda self: None)


@mutation("tape.swallowed_refusals_pass")
def _swallowed_refusals_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.observer import Observer
    from ostinato.recording.tape_recorder import TapeRecorder

    for owner in (Observer, TapeRecorder):
        monkeypatch.setattr(
            owner, "first", property(lambda self: None, lambda self, v: None), raising=False
        )


@mutation("pieces.results_are_trusted")
def _results_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entries import DirectEntry

    monkeypatch.setattr(DirectEntry, "_refuse", lambda self, what: None)


@mutation("pieces.no_split")
def _no_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato import state

    monkeypatch.setattr(state, "current", lambda: None)


@mutation("frames.innermost_of_all")
def _innermost_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import frames

    monkeypatch.setattr(frames, "is_machinery", lambda path: False)


@mutation("patches.not_installed")
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import patches

    monkeypatch.setattr(patches, "PATCHES", ())


@mutation("patches.stay_installed")
def _stay_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import patches

    monkeypatch.setattr(patches, "_leave", lambda: None)
    monkeypatch.setattr(patches, "_num_watchers", 0)
    for patch in patches.PATCHES:  # put the originals back when the test ends
        owner = patches._owner(patch.owner)
        if owner is not None and patch.attribute in vars(owner):
            monkeypatch.setattr(owner, patch.attribute, getattr(owner, patch.attribute))
    monkeypatch.setattr(patches, "_installed", [])


def without_diagnosis(rule: str) -> Mutation:
    """The doctor does not tell breaches of one rule."""

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        from ostinato.recording.doctor_examine import Examination

        original = Examination._add

        def add(self: Any, name: str, detail: str, location: str | None) -> None:
            if name != rule:
                original(self, name, detail, location)

        monkeypatch.setattr(Examination, "_add", add)

    return mutate


def _register_diagnoses() -> None:
    from ostinato.recording.doctor_rules import DOCTOR_RULES

    for rule in DOCTOR_RULES:
        mutations[f"doctor.{rule}"] = without_diagnosis(rule)


_register_diagnoses()


@mutation("doctor.python_is_put_back")
def _python_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.doctor_state import PythonState

    monkeypatch.setattr(PythonState, "restore", lambda self: None)


@mutation("doctor.memory_is_put_back")
def _memory_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.doctor_run import Run

    monkeypatch.setattr(Run, "restore", lambda self: None)


@mutation("ledger.nothing_changes")
def _nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.ledger import Ledger

    monkeypatch.setattr(Ledger, "check", lambda self: self.generation)


@mutation("ledger.arguments_have_no_code")
def _arguments_have_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import tree

    monkeypatch.setattr(tree, "kinds", lambda structure: ())


@mutation("recorder.unwatched_is_recorded")
def _unwatched_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.recorder import Recorder

    monkeypatch.setattr(Recorder, "_require_watched", lambda self, order: None)


@mutation("parameters.first_numbers_stay")
def _first_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.graphed import Graphed

    original = Graphed._served_for

    def served_for(self: Any, args: Any, kwargs: Any) -> Any:
        _, call = original(self, args, kwargs)
        return next(iter(self._served.values())), call

    monkeypatch.setattr(Graphed, "_served_for", served_for)


@mutation("key.values_without_type")
def _values_without_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import tree

    monkeypatch.setattr(tree, "_IDENTITY_ATOMS", ())
    original = tree._flatten_rare

    def flatten_rare(value: Any, kind: type, tensors: Any, path: str) -> Any:
        is_number = kind in (bool, int, float, complex, type(None), str)
        return (int, value) if is_number else original(value, kind, tensors, path)

    monkeypatch.setattr(tree, "_flatten_rare", flatten_rare)


@mutation("key.no_strides")
def _no_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import served

    def describe(tensor: Any) -> tuple[Any, ...]:
        shape = tensor.shape
        stride = tensor.new_empty(shape).stride()
        return (shape, stride, tensor.dtype, tensor.device, tensor.requires_grad, True)

    monkeypatch.setattr(served, "describe", describe)


@mutation("key.no_modes")
def _no_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import key, served

    modes = key.numeric_modes("cpu")
    monkeypatch.setattr(served, "numeric_modes", lambda device_type: modes)


@mutation("served.gradients_are_forgotten")
def _gradients_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.ledger import Ledger

    monkeypatch.setattr(Ledger, "requires_grad", lambda self: False)


@mutation("upload.never_sent")
def _never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.upload import Upload

    monkeypatch.setattr(Upload, "send", lambda self, tensors: None)


@mutation("buffers.never_loaded")
def _never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entry import Entry

    monkeypatch.setattr(Entry, "launch", lambda self, tensors: self.recorded.replay())


@mutation("buffers.padding_keeps_the_last_call")
def _padding_keeps_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind a shorter call is the longer call's before it."""
    from ostinato.recording import buffers

    def load_grown(self: Any, i: int, given: Any, sizes: Any) -> None:
        self.tensors[i].narrow(0, 0, given.shape[0]).copy_(given)

    monkeypatch.setattr(buffers.StaticInputs, "_load_grown", load_grown)


@mutation("buffers.offsets_are_not_loaded")
def _offsets_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boundaries frozen at the first call."""
    from ostinato.recording import buffers

    original = buffers.StaticInputs._load_grown

    def load_grown(self: Any, i: int, given: Any, sizes: Any) -> None:
        if given.is_floating_point() or not getattr(self, "is_loaded", False):
            original(self, i, given, sizes)
            self.is_loaded = getattr(self, "is_loaded", False) or not given.is_floating_point()

    monkeypatch.setattr(buffers.StaticInputs, "_load_grown", load_grown)


@mutation("family.tail_without_segment")
def _tail_without_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.family import Family

    monkeypatch.setattr(Family, "_spares", lambda self, sizes, rung: {})


@mutation("ledger.no_revert")
def _no_revert(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.ledger import Ledger

    monkeypatch.setattr(Ledger, "revert", lambda self, snapshot: None)


@mutation("recorder.trials_use_the_call")
def _trials_use_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up and gate run on the caller's inputs although state is declared."""
    from ostinato.recording.recorder import Order
    from ostinato.recording.undo import UndoLog

    monkeypatch.setattr(Order, "example", property(lambda self: self.tensors))
    monkeypatch.setattr(UndoLog, "restore", lambda self: None)


@mutation("gate.accepts_all")
def _accepts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import gate

    verdict = gate.Verdict(True, 0.0)
    monkeypatch.setattr(gate, "compare_exact", lambda *a: verdict)
    monkeypatch.setattr(gate, "compare_close", lambda *a: verdict)
    monkeypatch.setattr(gate, "check_finite", lambda *a: None)
    monkeypatch.setattr(gate, "check_spread", lambda *a: None)


@mutation("gate.callers_inputs_are_ignored")
def _callers_inputs_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.region import Region

    monkeypatch.setattr(Region, "gate_calls", lambda self, sizes: [])


@mutation("results.borrowed_always")
def _borrowed_always(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.results import Results

    monkeypatch.setattr(Results, "hand_out", Results.borrow)


@mutation("served.refusals_are_forgotten")
def _refusals_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal ends the call instead of denying the key."""
    from ostinato.recording.collection import Collection

    def record_exact(self: Any, request: Any, *, is_ordered: bool = False) -> Any:
        made = self._make(request, request.key, {}, lambda: None, self._keep_exact)
        return None if isinstance(made, str) else made

    monkeypatch.setattr(Collection, "record_exact", record_exact)


@mutation("cache.never_retires")
def _never_retires(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.cache import Cache

    monkeypatch.setattr(Cache, "retire", lambda self, generation, *, is_eviction=True: None)
    monkeypatch.setattr(Cache, "drop", lambda self, generation, holder: None)


@mutation("cache.no_limit")
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.recorder import Recorder

    monkeypatch.setattr(Recorder, "_require_room", lambda self, generation, num_bytes: None)
    monkeypatch.setattr(Recorder, "_shrink", lambda self, generation, entry: None)


@mutation("lane.no_lock")
def _no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads load the same static inputs."""
    import time
    from contextlib import nullcontext

    from ostinato.recording.entry import Entry
    from ostinato.recording.lane import Lane

    class NoLock(nullcontext[None]):
        def release(self) -> None: ...

    original = Lane.__init__

    def init(self: Lane, backend: Any) -> None:
        original(self, backend)
        self.lock = NoLock()  # type: ignore[assignment]

    def launch(self: Entry, tensors: Any) -> None:
        self.inputs.load(tensors, self.rung)
        time.sleep(0.0001)
        self.recorded.replay()

    monkeypatch.setattr(Lane, "__init__", init)
    monkeypatch.setattr(Lane, "acquire", lambda self: True)
    monkeypatch.setattr(Entry, "launch", launch)


@mutation("entry.no_write_back")
def _no_write_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entry import Entry

    monkeypatch.setattr(Entry, "_write_back", lambda self, i, given: None)


@mutation("results.aliases_are_copied")
def _aliases_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import results

    monkeypatch.setattr(results, "_storage", lambda tensor: 0)


@mutation("results.rungs_come_apart")
def _rungs_come_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.results import Results

    original = Results.cut

    def cut(self: Results, *args: Any) -> Any:
        self._is_shared = [False] * len(self._groups)
        return original(self, *args)

    monkeypatch.setattr(Results, "cut", cut)


@mutation("served.blind_to_others")
def _blind_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import graphed, served

    monkeypatch.setattr(graphed, "is_active", lambda: False)
    monkeypatch.setattr(served, "current_activity", lambda: None)
    monkeypatch.setattr(served, "is_foreign", lambda device_type: False)


@mutation("served.inputs_are_apart")
def _inputs_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.region import Region

    monkeypatch.setattr(Region, "shares_written", lambda self, tensors: False)


@mutation("stats.nothing_is_counted")
def _nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.stats import Counters

    monkeypatch.setattr(Counters, "count", lambda self, route: None)


@mutation("routes.never_forced")
def _never_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import served

    monkeypatch.setattr(served, "forced_route", lambda: None)


@mutation("results.first_values_stay")
def _first_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import examination, results, tree
    from ostinato.recording.ledger import Ledger

    monkeypatch.setattr(Ledger, "check", lambda self: self.generation)

    class Tree:
        describe, rebuilder, LEAF = tree.describe, tree.rebuilder, tree.LEAF

        @staticmethod
        def flatten(value: Any, tensors: Any, path: str = "") -> Any:
            tree.flatten(value, tensors, path)
            return "any"

    monkeypatch.setattr(examination, "tree", Tree)
    monkeypatch.setattr(results, "tree", Tree)


@mutation("tape.no_poison_and_no_gate")
def _no_poison_and_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    mutations["tape.no_poison"](monkeypatch)
    mutations["gate.accepts_all"](monkeypatch)


@mutation("tree.dictionaries_without_names")
def _dictionaries_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import tree

    monkeypatch.setattr(tree, "_flatten_name", lambda name, path: "name")


@mutation("numbers.baked")
def _numbers_are_baked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the ledger nor the rules look at what Python reads."""
    mutations["rules.host-scalar"](monkeypatch)
    mutations["ledger.nothing_changes"](monkeypatch)
    mutations["gate.accepts_all"](monkeypatch)


@mutation("key.values_are_ignored")
def _values_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import served
    from ostinato.recording.key import call_of

    def flat(args: Any, kwargs: Any) -> Any:
        return ((), ()), call_of(args, kwargs)[1]

    monkeypatch.setattr(served, "call_of", flat)


@mutation("tree.unknown_types_are_keys")
def _unknown_types_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import tree

    monkeypatch.setattr(tree, "_flatten_rare", lambda value, kind, tensors, path: (kind, id(value)))


@mutation("lane.jobs_join_nothing")
def _jobs_join_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.lane import Lane

    def ordered(self: Any, job: Any, before: Any) -> tuple[Any, Any]:
        self.backend.wait(before)
        return job(), self.backend.fence()

    monkeypatch.setattr(Lane, "_ordered", ordered)


@mutation("lane.idle_work_is_urgent")
def _idle_work_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.lane import Lane

    original = Lane._put
    monkeypatch.setattr(
        Lane, "_put", lambda self, job, *, is_urgent, **more: original(self, job, is_urgent=True)
    )


@mutation("lane.long_work_is_short")
def _long_work_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.lane import Lane

    original = Lane._put
    monkeypatch.setattr(
        Lane,
        "_put",
        lambda self, job, *, is_urgent, is_long=False: original(self, job, is_urgent=is_urgent),
    )


@mutation("packing.results_in_the_calls_order")
def _results_in_the_calls_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.packing import Packing

    monkeypatch.setattr(
        Packing, "restore", lambda self, results: [r for of_call in results for r in of_call]
    )


@mutation("packing.the_tail_takes_nothing")
def _the_tail_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.packing import Rung

    monkeypatch.setattr(Rung, "holds", lambda self, load: load.fits(self.capacity))


@mutation("served.every_call_borrows")
def _every_call_borrows(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.entry import Entry

    original = Entry.take
    monkeypatch.setattr(
        Entry,
        "take",
        lambda self, tensors, sizes, *, borrow: original(self, tensors, sizes, borrow=True),
    )


@mutation("encoder.looks_at_the_patches")
def _looks_at_the_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.recorded import RecordedTower

    original = RecordedTower.run

    def run(self: Any, patches: Any, layout: Any, rung: Any) -> Any:
        assert patches.isfinite().all().item()
        return original(self, patches, layout, rung)

    monkeypatch.setattr(RecordedTower, "run", run)


@mutation("recorded.outside_inference_mode")
def _outside_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.recorded import RecordedTower

    monkeypatch.setattr(RecordedTower, "record", RecordedTower.record.__wrapped__)  # type: ignore[attr-defined]


@mutation("recorded.dead_rungs_stay")
def _dead_rungs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.recorded import RecordedTower

    monkeypatch.setattr(RecordedTower, "packer", property(lambda self: self._plan[0]))


@mutation("recorded.every_mode_warms_the_ladder_up")
def _every_mode_warms_the_ladder_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.recorded import RecordedTower

    def warm_up(self: Any, progress: Any = None) -> None:
        for rung in self._rungs:
            self.record(rung)

    monkeypatch.setattr(RecordedTower, "warm_up", warm_up)


@mutation("demand.nothing_is_wanted")
def _nothing_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.vision.demand import Demand

    monkeypatch.setattr(Demand, "note", lambda self, layout, find: [])
