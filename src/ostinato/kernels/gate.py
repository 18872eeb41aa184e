"""Decides, per signature, whether a call runs its fused kernel or the reference.

An unknown signature is checked on the device it will run on, on adversarial inputs, before a kernel
serves anything; under recording nothing is checked and an unknown signature runs the reference. A
refused signature is logged once and served by the reference, in direct calls and recordings alike.
The gate never allocates in a recording and never draws from a caller's random generator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch

from ostinato import state
from ostinato.kernels import examples
from ostinato.kernels.compare import first_difference
from ostinato.kernels.op import Operator
from ostinato.kernels.timing import ONE_AT_A_TIME, Timer, device_seconds

Numerics = Literal["reference", "fast", "invariant"]
SLOWER_THAN = 1.05
"""A kernel that takes this many times as long as the reference is refused; room for noise."""

MAX_FORMS = 16_384
"""Forms of calls whose verdict is at hand; beyond so many they are looked up anew."""

_log = logging.getLogger(__name__)
_numerics: ContextVar[Numerics] = ContextVar("ostinato_numerics", default="fast")
current_numerics = _numerics.get


@contextmanager
def using_numerics(numerics: Numerics) -> Iterator[None]:
    """Choose which operators may run fused inside the ``with`` block.

    ``"reference"``: bit-exact ones only. ``"fast"``: all. ``"invariant"``: those whose answer for a
    row does not depend on the other rows, chosen without a clock.
    """
    token = _numerics.set(numerics)
    try:
        yield
    finally:
        _numerics.reset(token)


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything that a verdict depends on; closed, hashable, printable."""

    operator: str
    device: str
    capability: tuple[int, int]
    arguments: tuple[object, ...]
    options: tuple[tuple[str, object], ...]
    versions: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` says why a signature is refused; an empty one means that it is served fused."""

    is_right: bool
    is_fast: bool
    reason: str = ""


class Gate:
    """Verdicts of one process. ``timer`` is given so that tests need no clock and no GPU."""

    def __init__(self, timer: Timer = device_seconds) -> None:
        self._timer = timer
        self._lock = ONE_AT_A_TIME
        self._verdicts: dict[Signature, Verdict] = {}
        self._recorded: set[Signature] = set()
        self._generation = 0
        self._ready: dict[Form, _Ready] = {}

    def generation(self) -> int:
        """Rises whenever a signature that a recording has used is served differently from then on.

        ``state.verdicts``, which is part of every recording's key, rises with it. A first verdict
        that no recording has relied on leaves both alone.
        """
        return self._generation

    def verdicts(self) -> dict[Signature, Verdict]:
        """A copy of all verdicts so far."""
        with self._lock:
            return dict(self._verdicts)

    def serve(self, operator: Operator, args: tuple[Any, ...], **out: torch.Tensor) -> Any:
        """Compute ``operator`` for ``args``, fused where that is proven, else by the reference."""
        form = form_of(operator, args)
        ready = self._ready.get(form)
        if ready is None:
            signature = signature_of(operator, args)
            if signature is None:
                return operator.reference(*args)
            ready = self._look_up(form, operator, signature, args)
        elif _is_recording(ready.is_cuda):
            self._recorded.add(ready.signature)
        if ready.is_fused:
            try:
                return operator.kernel(*args, **out)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                reason = f"it raised {_one_line(error)}"
                self._decide(ready.signature, Verdict(False, False, reason))
        return operator.reference(*args)

    def _look_up(
        self, form: Form, operator: Operator, signature: Signature, args: tuple[Any, ...]
    ) -> _Ready:
        """What becomes of calls of this form, kept for the next one unless it is not known yet."""
        is_cuda = signature.device.startswith("cuda")
        is_fused = self._may_run_fused(operator, signature, args, is_cuda=is_cuda)
        with self._lock:
            verdict = self._verdicts.get(signature)
            # Another thread may have refused it meanwhile: this call still runs as it was decided.
            is_settled = is_fused == self._is_served(operator, verdict)
            ready = _Ready(signature, is_fused, is_cuda)
            if verdict is not None and is_settled:
                if len(self._ready) >= MAX_FORMS:
                    self._ready.clear()
                self._ready[form] = ready
        return ready

    def check(self, operator: Operator, args: tuple[Any, ...]) -> Verdict:
        """Check the signature of ``args`` now, whatever was known of it, and keep the verdict."""
        signature = signature_of(operator, args)
        if signature is None:
            return Verdict(False, False, "an empty call has no signature")
        with self._lock:
            return self._decide(signature, self._examine(operator, args, signature.capability))

    def recheck_speed(self, operator: Operator, args: tuple[Any, ...]) -> Verdict:
        """Time a verified signature again and refuse it if it has become slower."""
        signature = signature_of(operator, args)
        with self._lock:
            known = None if signature is None else self._verdicts.get(signature)
            if signature is None or known is None or not known.is_right:
                return known or Verdict(False, False, "not checked")
            with state.checking():
                return self._decide(signature, self._timed(operator, args))

    def _may_run_fused(
        self, operator: Operator, signature: Signature, args: tuple[Any, ...], *, is_cuda: bool
    ) -> bool:
        verdict = self._verdicts.get(signature)
        if _is_recording(is_cuda):
            self._recorded.add(signature)
        elif verdict is None:
            with self._lock:
                verdict = self._verdicts.get(signature)
                if verdict is None:
                    found = self._examine(operator, args, signature.capability)
                    verdict = self._decide(signature, found)
        return self._is_served(operator, verdict)

    @staticmethod
    def _is_served(operator: Operator, verdict: Verdict | None) -> bool:
        """Whether the kernel serves under this context's numerics."""
        if verdict is None or not verdict.is_right:
            return False
        numerics = _numerics.get()
        if operator.exactness == "close" and numerics != "fast":
            return numerics == "invariant" and operator.is_row_invariant
        return verdict.is_fast

    def _decide(self, signature: Signature, verdict: Verdict) -> Verdict:
        with self._lock:
            before = self._verdicts.get(signature)
            was_fused = before is not None and not before.reason
            self._verdicts[signature] = verdict
            if before is not None:
                self._ready.clear()
            if signature in self._recorded and was_fused != (not verdict.reason):
                self._generation += 1
                state.verdicts.changed()
            if verdict.reason and (before is None or not before.reason):
                _log.warning(
                    "%s runs unfused on %s: %s (%s)",
                    *(signature.operator, signature.device, verdict.reason, signature.arguments),
                )
        return verdict

    def _examine(
        self, operator: Operator, args: tuple[Any, ...], capability: tuple[int, int]
    ) -> Verdict:
        if capability < operator.min_capability and capability != _NO_CAPABILITY:
            return Verdict(False, False, f"compute capability {capability} is not supported")
        with state.checking():
            return self._examined(operator, args)

    def _examined(self, operator: Operator, args: tuple[Any, ...]) -> Verdict:
        try:
            reason = first_wrong_answer(operator, args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"it raised {_one_line(error)}"
        return Verdict(False, False, reason) if reason else self._timed(operator, args)

    def _timed(self, operator: Operator, args: tuple[Any, ...]) -> Verdict:
        if not operator.is_timed:
            return Verdict(True, True)
        own = tuple(_scratch(operator, args))
        fused_s, reference_s = self._timer(
            (lambda: operator.kernel(*own), lambda: operator.reference(*own))
        )
        if fused_s <= SLOWER_THAN * reference_s:
            return Verdict(True, True)
        times = f"{fused_s * 1e6:.1f} us against {reference_s * 1e6:.1f} us"
        return Verdict(True, False, f"it is slower than the reference: {times}")


def first_wrong_answer(operator: Operator, args: tuple[Any, ...]) -> str:
    """First disagreement of kernel and reference on inputs that stand for ``args``, or ""."""
    if operator.examples is not None:
        cases = operator.examples(args)
    else:
        has_rows = [name in operator.rows for name in operator.parameters]
        cases = examples.adversarial(args, has_rows, huge=operator.largest)
    for number, case in enumerate(cases):
        expected, got = outcome(operator, operator.reference, case), None
        allowed = None if operator.tolerance is None else operator.tolerance(expected, case)
        got = outcome(operator, operator.kernel, case)
        reason = first_difference(expected, got, allowed)
        if reason:
            return f"inputs {number}: {reason}"
    return ""


def outcome(
    operator: Operator, fn: Callable[..., Any], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """Results of ``fn`` and the arguments it writes, on arguments that nobody else holds."""
    own = _scratch(operator, args)
    result = fn(*own)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    written = [own[operator.parameters.index(name)] for name in operator.writes]
    return [x for x in (*results, *written) if isinstance(x, torch.Tensor)]


def _scratch(operator: Operator, args: tuple[Any, ...]) -> list[Any]:
    return [
        examples.like(value, value) if name in operator.writes else value
        for name, value in zip(operator.parameters, args, strict=True)
    ]


Form = tuple[object, ...]
"""A call as precisely as it comes cheaply: forms that are equal have equal signatures."""


class _Ready(NamedTuple):
    """What becomes of calls of one form."""

    signature: Signature
    is_fused: bool
    is_cuda: bool


def form_of(operator: Operator, args: tuple[Any, ...]) -> Form:
    """The form of a call. An operator's arguments have one Python type each, as its schema says."""
    form: list[object] = [operator, _numerics.get()]
    for value in args:
        if isinstance(value, torch.Tensor):
            form += (
                value.get_device(),
                value.dtype,
                value.shape,
                value.stride(),
                value.data_ptr() & 15,
            )
        else:
            form.append(value)
    return tuple(form)


def signature_of(operator: Operator, args: tuple[Any, ...]) -> Signature | None:
    """The signature of a call, or ``None`` for a call without rows."""
    described: list[object] = []
    device = None
    for name, value in zip(operator.parameters, args, strict=True):
        if not isinstance(value, torch.Tensor):
            described.append((type(value).__name__, value))
            continue
        device = device or value.device
        shape: tuple[object, ...] = tuple(value.shape)
        if name in operator.rows:
            if value.shape[0] == 0:
                return None
            shape = (row_class(value.shape[0]), *shape[1:])
        is_aligned = value.data_ptr() % 16 == 0
        described.append((str(value.dtype), shape, value.stride(), is_aligned))
    place = device or torch.device("cpu")
    return Signature(
        operator.name,
        str(place),
        _capability(place),
        tuple(described),
        operator.options,
        _versions(),
    )


def row_class(rows: int) -> str:
    """Rows of one class share a verdict; the gate's own inputs reach every class."""
    return "1-16" if rows <= 16 else "17-256" if rows <= 256 else "257-"


_NO_CAPABILITY = (0, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else _NO_CAPABILITY


@cache
def _versions() -> tuple[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return torch.__version__, version("triton")
    except PackageNotFoundError:
        return torch.__version__, "none"


def _is_recording(is_cuda: bool) -> bool:
    return state.is_recording() or (is_cuda and torch.cuda.is_current_stream_capturing())


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


GATE = Gate()
