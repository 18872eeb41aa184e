"""Watches one run of a callable and reports every breach of a rule.

``on_finding`` decides what a breach means: the probe raises, the doctor collects. A ``watch`` sees
every operator before and after it runs; it keeps account and never changes a value. Works on real
tensors and, entered inside a ``FakeTensorMode``, on fake ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self

import torch
from torch.overrides import TorchFunctionMode

from ostinato import state
from ostinato.recording import patches
from ostinato.recording.calls import Call, has_storage, storage_key
from ostinato.recording.frames import RECORDER, TORCH, called_from, user_location
from ostinato.recording.function_rules import (
    description_breach,
    function_breach,
    sets_python_number,
)
from ostinato.recording.modes import OperatorMode
from ostinato.recording.operator_rules import breaches_after, breaches_before
from ostinato.recording.rules import RULES, Finding
from ostinato.recording.undo import HostDraws

_MAY_BREAK = {"address": (TORCH,), "description": (TORCH, RECORDER)}
"""Rules that some code asks about for its own purposes."""

OnFinding = Callable[[Finding], None]
Report = Callable[[str, str], None]


class Watch(Protocol):
    """Sees each operator call. ``report(rule, detail)`` may raise."""

    def before(self, call: Call, report: Report) -> None: ...

    def after(self, call: Call, result: Any) -> None: ...


def raise_finding(finding: Finding) -> None:
    """An ``on_finding`` that refuses at the first breach."""
    raise finding.refusal()


class Observer:
    """A context manager for one run on one thread; also the splitter of a probed region.

    ``first`` is the first finding, kept because the callable may swallow the exception.
    """

    def __init__(
        self,
        on_finding: OnFinding = raise_finding,
        watch: Watch | None = None,
        inputs: Sequence[torch.Tensor] = (),
        host: HostDraws | None = None,
    ) -> None:
        self.first: Finding | None = None
        self.constants: dict[int, torch.Tensor] = {}
        self._on_finding = on_finding
        self._watch = watch
        self._inputs = {storage_key(t) for t in inputs if has_storage(t)}
        self._host = host
        self._operator_depth = 0
        self._is_lenient = False
        self._bakes_number = False
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(patches.watching(self._on_patch))
            stack.enter_context(_FunctionMode(self))
            stack.enter_context(_DispatchMode(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._stack is not None
        self._stack.close()

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a direct call between pieces: it may do what a recording may not."""
        if self._host is not None:
            self._host.look()
        try:
            with self._flag("_is_lenient"):
                return fn(*args)
        finally:
            if self._host is not None:
                self._host.look(is_piece=True)

    def report(self, rule: str, detail: str) -> None:
        """A breach of a rule that a direct call between pieces may break."""
        if not self._is_lenient:
            self.report_always(rule, detail)

    def report_always(self, rule: str, detail: str) -> None:
        """A breach wherever it happens, such as a write to an input."""
        finding = Finding(RULES[rule], detail, user_location())
        self.first = self.first or finding
        self._on_finding(finding)

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of a torch function."""
        if sets_python_number(func, args):
            with self._flag("_bakes_number"):
                return func(*args, **kwargs)
        breach = function_breach(func, args, kwargs)
        if breach is None:
            breach = description_breach(func, args, kwargs, self._inputs)
        if breach is not None and not (called_from(*_MAY_BREAK.get(breach[0], ()))):
            self.report(*breach)
        return func(*args, **kwargs)

    def operator(self, call: Call) -> Any:
        """One operator below autograd."""
        for rule, detail in breaches_before(call, self.constants.keys()):
            if rule != "baked-data" or not self._bakes_number:
                self.report(rule, detail)
        if self._watch is not None:
            self._watch.before(call, self.report_always)
        result = self._run(call)
        if call.name == "aten::lift_fresh":
            self.constants[storage_key(result)] = result
        for rule, detail in breaches_after(call, result):
            self.report(rule, detail)
        if self._watch is not None:
            self._watch.after(call, result)
        return result

    def _run(self, call: Call) -> Any:
        self._operator_depth += 1
        try:
            with torch._C.DisableTorchFunction():
                return call.func(*call.args, **call.kwargs)
        finally:
            self._operator_depth -= 1

    def _on_patch(self, patch: patches.Patch) -> bool:
        if self._is_lenient or state.is_checking() or (patch.opaque and self._operator_depth > 0):
            return False
        self.report(patch.rule, patch.name)
        return True

    @contextlib.contextmanager
    def _flag(self, name: str) -> Iterator[None]:
        former = getattr(self, name)
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, former)


class _FunctionMode(TorchFunctionMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._observer.function(func, args, kwargs or {})


class _DispatchMode(OperatorMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def on_operator(self, call: Call) -> Any:
        return self._observer.operator(call)

    def on_higher_order(self, call: Call) -> Any:
        self._observer.report("higher-order", str(call.func))
        return call.func(*call.args, **call.kwargs)
