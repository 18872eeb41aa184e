"""The runs that the doctor makes of one callable; what each shows, and what their differences show.

It only concludes: ``doctor_run`` watches, ``doctor_trace`` and ``doctor_state`` compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ostinato.errors import UnkeyableArgument
from ostinato.recording import doctor_arguments, gate, tree
from ostinato.recording.calls import has_storage, storage_key
from ostinato.recording.doctor_report import Diagnosis, Measurements, Report, in_order
from ostinato.recording.doctor_rules import diagnosis
from ostinato.recording.doctor_run import Run, Stopped
from ostinato.recording.doctor_source import Sources
from ostinato.recording.doctor_state import Change, PythonState
from ostinato.recording.doctor_trace import branch, differences
from ostinato.recording.frames import user_location
from ostinato.recording.survey import survey

_NO_STREAM = re.compile(
    r"dummy base class|torch\.cuda\.(Stream|Event) requires|no NVIDIA driver|No CUDA GPUs"
    r"|driver version is insufficient|no CUDA-capable device"
)
"""What a build without CUDA, or a machine without a GPU, says to ``torch.cuda.Stream()``."""

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Examination:
    """Examines once; ``report`` is the only use."""

    def __init__(self, fn: Callable[..., Any], calls: Sequence[Call]) -> None:
        self._fn = fn
        self._calls = calls
        self._args, self._kwargs = calls[0]
        self._caller = user_location()
        self._found: dict[tuple[str, str | None, str], Diagnosis] = {}
        self._runs: list[Run] = []
        self._survey = survey(fn)
        self._inputs = _tensors(calls[0])
        self._is_on_gpu = doctor_arguments.is_on_gpu(self._inputs, self._survey)

    def report(self) -> Report:
        """Make the runs and tell what they showed; everything is put back, whatever happens."""
        before = PythonState(self._fn, self._survey)
        measurements: Measurements | None = None
        try:
            self._before_the_runs()
            self._examine(before)
            self._read_source()
            if self._is_on_gpu and self._runs[0].is_complete:
                measurements = self._measure()
        finally:
            for run in reversed(self._runs):
                run.restore()
            before.restore()
        return Report(
            target=_name(self._fn),
            findings=in_order(list(self._found.values())),
            num_operations=len(self._runs[0].operations),
            measurements=measurements,
        )

    def _before_the_runs(self) -> None:
        device = "cuda" if self._is_on_gpu else "cpu"
        for rule, detail in doctor_arguments.unkeyable(self._args, self._kwargs):
            self._add(rule, detail, None)
        for breach in doctor_arguments.modes(self._fn, self._survey, self._inputs, device):
            self._add(*breach, None)

    def _examine(self, before: PythonState) -> None:
        first = self._run(self._calls[0])
        if not first.is_complete:
            self._tell_error(first)
            self._tell_run(first)
            return
        set_up = list(before.changes())
        self._survey = survey(self._fn)
        between = PythonState(self._fn, self._survey)
        second = self._run(self._calls[0])
        drift = list(between.changes())
        self._tell_run(second)
        if not second.is_complete:
            self._tell_error(second)
            return
        lazy = branch(first.operations, second.operations)
        third = self._run(self._calls[0])
        self._tell_changes(set_up, drift)
        self._compare(second, third, "of equal input")
        if lazy is not None and branch(second.operations, third.operations) is None:
            self._add("first-call", f"{lazy.detail}: what differs", lazy.location)
        self._compare_results(second, third)
        if branch(second.operations, third.operations) is None:
            self._vary(third)
        self._compare_examples(third)

    def _run(self, call: Call) -> Run:
        args, kwargs = call
        run = Run(_tensors(call), self._add, is_pretended=not self._is_on_gpu)
        self._runs.append(run)
        return run.execute(lambda: self._fn(*args, **kwargs))

    # -- what one run shows ---------------------------------------------------------------------

    def _tell_run(self, run: Run) -> None:
        found = self._survey
        held = (*found.tensors, *_slot_tensors(found.slots))
        owned = {storage_key(t) for t in held if has_storage(t)}
        made = run.tracker.summary(None)
        for tensor in made.reads:
            key = storage_key(tensor)
            if key not in owned and key in run.places.reads:
                detail = f"a tensor of shape {list(tensor.shape)} from outside"
                self._add("external-read", detail, run.places.reads[key])
        for write in made.writes:
            self._add("state-write", f"{write.operator} on a tensor from outside", write.location)
        for location, detail in run.places.draws.items():
            self._add("random", detail, location)
        for name, location in run.places.custom.items():
            self._add("no-fake", name, location)
        if run.is_complete:
            for rule, detail in doctor_arguments.results(run.result, self._inputs, found):
                self._add(rule, detail, None)

    def _tell_error(self, run: Run) -> None:
        if isinstance(run.error, Stopped):
            return
        error = run.error
        text = str(error).strip().partition("\n")[0]
        if _NO_STREAM.search(text):
            self._add("stream", "a stream or an event", run.error_location)
        else:
            self._add("call-fails", f"{type(error).__name__}: {text}: it", run.error_location)

    def _read_source(self) -> None:
        told = [f.location for f in self._found.values() if f.location is not None]
        for place in self._sources.suspicious():
            if not any(place.covers(location) for location in told):
                self._add("source", place.detail, place.location)

    @property
    def _sources(self) -> Sources:
        return Sources(dict.fromkeys(c for run in self._runs for c in run.codes))

    # -- what differs between runs --------------------------------------------------------------

    def _tell_changes(self, set_up: Sequence[Change], drift: Sequence[Change]) -> None:
        """Python state that the first call changed, and what every call changes."""
        sources = self._sources
        drifting = {change.label for change in drift}
        for change in drift:
            where = sources.setter_of(change.names)
            self._add("python-state", f"{change.label} ({change.detail})", where)
        for change in set_up:
            if change.label not in drifting:
                where = sources.setter_of(change.names)
                self._add("first-call", f"{change.label} ({change.detail})", where)

    def _compare(self, one: Run, other: Run, what: str) -> None:
        if not other.is_complete:
            self._tell_error(other)
            return
        for difference in differences(one.operations, other.operations):
            rule = "baked-branch" if difference.is_branch else "baked-scalar"
            detail = f"{difference.detail.removesuffix(',')} {what},"
            self._add(rule, detail, difference.location)

    def _compare_results(self, one: Run, other: Run) -> None:
        if not other.is_complete:
            return
        try:
            a, b = tree.flatten(one.result, []), tree.flatten(other.result, [])
        except UnkeyableArgument:
            return
        if a != b and not any(f.rule == "result-value" for f in self._found.values()):
            detail = f"a result {tree.describe(a)} and then {tree.describe(b)}"
            self._add("result-value", detail, None)

    def _vary(self, reference: Run) -> None:
        """Other floating values, same shapes: what then differs was taken from values."""
        if not reference.is_complete or not any(t.is_floating_point() for t in self._inputs):
            return
        try:
            varied = [gate.vary(t, 1) for t in self._inputs]
            args, kwargs = tree.rebuilder((self._args, self._kwargs))(varied)
            tree.flatten((self._args, self._kwargs), [])
        except UnkeyableArgument:
            return
        run = self._run((args, kwargs))
        if run.is_complete:
            self._compare(reference, run, "of other values")
            self._compare_results(reference, run)

    def _compare_examples(self, reference: Run) -> None:
        for call in self._calls[1:]:
            run = self._run(call)
            if not run.is_complete:
                self._tell_error(run)
                continue
            parting = branch(reference.operations, run.operations)
            if parting is not None:
                self._add("shape-branch", f"{parting.detail}: what is run", parting.location)

    def _measure(self) -> Measurements:
        from ostinato.recording.doctor_gpu import measure

        is_refused = any(f.severity != "info" for f in self._found.values())
        return measure(self._fn, self._args, self._kwargs, is_refused=is_refused)

    def _add(self, rule: str, detail: str, location: str | None) -> None:
        """One finding for each rule and line; without a line, for each detail."""
        if location == self._caller:
            location = None  # a library's code, called by whoever asked the doctor
        key = (rule, location, "" if location else detail)
        if key not in self._found:
            self._found[key] = diagnosis(rule, detail, location)


def _tensors(call: Call) -> list[torch.Tensor]:
    """The tensors of a call, also when other arguments have no place in a key."""
    args, kwargs = call
    tensors: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        try:
            tree.flatten(value, tensors)
        except UnkeyableArgument:
            continue
    return tensors


def _slot_tensors(slots: Sequence[Any]) -> list[torch.Tensor]:
    held = [s.value for s in slots if isinstance(s.value, torch.Tensor)]
    return [t for t in held if not is_lazy(t)]


def _name(fn: Callable[..., Any]) -> str:
    module = getattr(fn, "__module__", None) or type(fn).__module__
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return f"{module}:{name}"
