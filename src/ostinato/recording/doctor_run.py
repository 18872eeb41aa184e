"""One watched run of a callable: findings, operators, reads and writes. It goes on after a finding.

What the run changed is put back by ``Run.restore``, byte for byte.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato import state as activity
from ostinato.recording.calls import Call
from ostinato.recording.collecting import collection_held_off
from ostinato.recording.doctor_host import Pretence
from ostinato.recording.doctor_outside import OutsideWatch
from ostinato.recording.doctor_trace import Operation, operation
from ostinato.recording.frames import is_machinery, user_location
from ostinato.recording.observer import Observer, Report
from ostinato.recording.probe import MAX_STATE_BYTES, Tracker
from ostinato.recording.rules import Finding
from ostinato.recording.undo import RandomUndo

OnBreach = Callable[[str, str, str | None], None]
"""Rule, detail, location."""


class Stopped(BaseException):
    """Ends a run that may not go on; no callable swallows it."""


class Run:
    """What one run showed. ``error`` is the exception that ended it early, if one did."""

    def __init__(self, inputs: Sequence[torch.Tensor], on_breach: OnBreach, is_pretended: bool):
        self.inputs = tuple(inputs)
        self.operations: list[Operation] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.error_location: str | None = None
        self.codes: tuple[types.CodeType, ...] = ()
        self.places = Places()
        self.random = RandomUndo()
        self.tracker = Tracker(inputs, (), (), MAX_STATE_BYTES, self.random)
        self.on_breach = on_breach
        self._pretence = Pretence() if is_pretended else None

    @property
    def is_complete(self) -> bool:
        return self.error is None

    def execute(self, body: Callable[[], Any]) -> Run:
        """Run ``body`` to its end, or to where it cannot go on."""
        observer = _Examiner(self, self._pretence)
        outside = OutsideWatch(self.on_breach)
        phase = activity.Activity(activity.Phase.WARM_UP, observer)
        try:
            with collection_held_off(), activity.entering(phase), observer, outside:
                self.result = body()
                self.tracker.finish(observer.report)
        except (Exception, Stopped) as error:
            self.error = error
            self.error_location = _raised_at(error)
        self.codes = tuple(outside.codes)
        return self

    def restore(self) -> None:
        self.tracker.undo.restore()
        self.random.restore()

    def on_finding(self, finding: Finding) -> None:
        self.on_breach(finding.rule.name, finding.detail, finding.location)
        if finding.rule.name == "large-state":
            raise Stopped  # the write that comes next could not be undone

    def note(self, call: Call) -> None:
        self.operations.append(operation(call, user_location()))


class Places:
    """Where storages from outside were first used, numbers drawn, custom operators called."""

    def __init__(self) -> None:
        self.reads: dict[int, str | None] = {}
        self.draws: dict[str | None, str] = {}
        self.custom: dict[str, str | None] = {}

    def note(self, call: Call, new_reads: Sequence[int]) -> None:
        location = user_location()
        if call.name != "aten::lift_fresh":  # data from Python, which is told by a rule of its own
            self.reads.update(dict.fromkeys(new_reads, location))
        if call.is_random:
            named = "a generator" if any(True for _ in call.generators) else "the default generator"
            self.draws.setdefault(location, f"{call.name} from {named}")
        if call.func.namespace not in _BUILT_IN and not _has_fake(call.func):
            self.custom.setdefault(call.name, location)


class _Examiner(Observer):
    """Collects, keeps the operators, and lets CPU tensors stand for GPU tensors."""

    def __init__(self, run: Run, pretence: Pretence | None) -> None:
        super().__init__(run.on_finding, _Watch(run), run.inputs)
        self._run_of = run
        self._pretence = pretence

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stand = self._pretence.stand_in(func, args, kwargs) if self._pretence else None
        if stand is None:
            return super().function(func, args, kwargs)
        assert self._pretence is not None
        if stand.breach is not None:
            self.report(*stand.breach)
        elif func is torch.tensor:
            self.report("baked-data", "torch.tensor()")
        result = stand.run()
        if stand.is_host:
            self._pretence.add(result)
        return result

    def operator(self, call: Call) -> Any:
        if not self._is_lenient:
            self._run_of.note(call)
        result = super().operator(call)
        if self._pretence is not None:
            for rule, detail in self._pretence.after(call, result, self.constants.keys()):
                if not self._is_lenient:
                    self._run_of.on_breach(rule, detail, user_location())
        return result


class _Watch:
    """The tracker of a run, and the places of what it tracks."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def before(self, call: Call, report: Report) -> None:
        tracker, known = self._run.tracker, len(self._run.tracker.reads)
        tracker.before(call, report)
        self._run.places.note(call, list(tracker.reads)[known:])

    def after(self, call: Call, result: Any) -> None:
        self._run.tracker.after(call, result)


_BUILT_IN = {"aten", "prim", "prims", "quantized", "_quantized", "torch_attn", "mkldnn", "profiler"}


def _has_fake(func: Any) -> bool:
    """Operators of ``torch.library.custom_op`` have one that raises until one is registered."""
    name = func.name()
    defined = torch._library.custom_ops.OPDEFS.get(func._schema.name)
    if defined is not None:
        is_trivial = torch._library.utils.can_generate_trivial_fake_impl(func)
        return defined._abstract_fn is not None or bool(is_trivial)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if any(has_kernel(name, key) for key in ("Meta", "CompositeImplicitAutograd")):
        return True
    entry = torch._library.simple_registry.singleton.find(func._schema.name)
    return entry.fake_impl.kernel is not None


def _raised_at(error: BaseException) -> str | None:
    """The innermost line of the user's code in a traceback."""
    place, traceback = None, error.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not is_machinery(path):
            place = f"{path}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
