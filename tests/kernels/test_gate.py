"""The gate, with faults injected: each protection is shown to catch what it is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ostinato import state
from ostinato.kernels import gate as gate_module
from ostinato.kernels.gate import Gate, Verdict, signature_of, using_numerics
from ostinato.kernels.op import Exactness, Operator

RECORDING = state.Activity(state.Phase.RECORDING)


def reference(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor + 1


def right(x: torch.Tensor, factor: float) -> torch.Tensor:
    return 1 + factor * x


def one_bit_off(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = reference(x, factor)
    return torch.where(x == 1.5, torch.nextafter(y, y + 1), y)


def fused_once(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.addcmul(torch.ones_like(x).double(), x.double(), x.new_tensor(factor).double()).to(
        x.dtype
    )


def wrong_for_nan(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = reference(x, factor)
    return torch.where(y.isnan(), 0.0, y)


def all_nan(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.full_like(x, torch.nan)


def forgets_the_last_row(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = reference(x, factor)
    y[-1] = 0
    return y


def no_kernel_image(x: torch.Tensor, factor: float) -> torch.Tensor:
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")


def too_much_shared_memory(x: torch.Tensor, factor: float) -> torch.Tensor:
    raise RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 101376")


def _operator(
    kernel: Callable[..., Any], exactness: Exactness = "bit-exact", **more: Any
) -> Operator:
    tolerance = None
    if exactness == "close":
        tolerance = lambda expected, args: [1e-5 * expected[0].abs()]  # noqa: E731
    return Operator("probe", reference, kernel, exactness, tolerance, rows=("x",), **more)


def _clock(*seconds: float) -> Callable[[Sequence[Callable[[], object]]], list[float]]:
    """A timer that calls nothing; kernel first, reference second."""
    return lambda candidates: list(seconds)


FAST = _clock(1.0, 2.0)
X = torch.full((40, 6), 1.5)


def served_by(gate: Gate, operator: Operator, x: torch.Tensor = X) -> str:
    """Who computed a call: the kernel is told apart by a mark that it leaves."""
    calls = []
    marked = Operator(
        operator.name,
        operator.reference,
        lambda *args: (calls.append("kernel"), operator.kernel(*args))[1],
        operator.exactness,
        operator.tolerance,
        rows=operator.rows,
        is_row_invariant=operator.is_row_invariant,
    )
    gate.serve(operator, (x, 1.3))
    calls.clear()
    result = gate.serve(marked, (x, 1.3))
    if not calls:
        assert torch.equal(result, reference(x, 1.3))
    return "kernel" if calls else "reference"


def test_a_right_kernel_serves() -> None:
    gate = Gate(FAST)
    assert served_by(gate, _operator(right)) == "kernel"
    [verdict] = gate.verdicts().values()
    assert verdict.is_right and verdict.is_fast and verdict.reason == ""


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (one_bit_off, "bytes differ"),
        (fused_once, "bytes differ"),
        (wrong_for_nan, "NaN at other places"),
        (all_nan, "NaN at other places"),
        (forgets_the_last_row, "bytes differ"),
        (no_kernel_image, "no kernel image"),
        (too_much_shared_memory, "shared memory"),
    ],
)
def test_a_broken_kernel_is_refused_and_the_reference_serves(
    kernel: Callable[..., Any], reason: str
) -> None:
    gate = Gate(FAST)
    assert served_by(gate, _operator(kernel)) == "reference"
    [verdict] = gate.verdicts().values()
    assert reason in verdict.reason


def test_the_sign_of_zero_counts_for_bit_exact_operators() -> None:
    def negate(x: torch.Tensor) -> torch.Tensor:
        return -x

    broken = Operator("negate", negate, lambda x: 0 - x, "bit-exact", rows=("x",))
    gate = Gate(FAST)
    gate.serve(broken, (X,))
    assert "bytes differ" in next(iter(gate.verdicts().values())).reason


def test_close_operators_may_differ_within_their_bound_only() -> None:
    def off_by(relative: float) -> Callable[..., torch.Tensor]:
        return lambda x, factor: reference(x, factor) * (1 + relative)

    assert served_by(Gate(FAST), _operator(off_by(5e-6), "close")) == "kernel"
    assert served_by(Gate(FAST), _operator(off_by(5e-5), "close")) == "reference"
    assert served_by(Gate(FAST), _operator(all_nan, "close")) == "reference"


def test_a_slow_kernel_is_refused() -> None:
    gate = Gate(_clock(2.2, 2.0))
    assert served_by(gate, _operator(right)) == "reference"
    [verdict] = gate.verdicts().values()
    assert verdict.is_right and "slower than the reference" in verdict.reason
    assert served_by(Gate(_clock(2.05, 2.0)), _operator(right)) == "kernel"


def test_a_kernel_that_became_slower_than_its_first_timing_is_refused() -> None:
    times = iter([[1.0, 2.0], [9.0, 2.0]])
    gate, operator = Gate(lambda candidates: next(times)), _operator(right)
    with state.entering(RECORDING):
        gate.serve(operator, (X, 1.3))
    gate.check(operator, (X, 1.3))
    before = gate.generation()
    assert not gate.recheck_speed(operator, (X, 1.3)).is_fast
    assert gate.generation() == before + 1
    assert served_by(gate, operator) == "reference"


def test_one_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(FAST)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            gate.serve(_operator(no_kernel_image), (X, 1.3))
    [record] = caplog.records
    assert "probe runs unfused" in record.getMessage()


def test_recording_never_checks_and_uses_verified_signatures_only() -> None:
    gate, operator = Gate(FAST), _operator(right)
    with state.entering(RECORDING):
        gate.serve(operator, (X, 1.3))
        assert gate.verdicts() == {}
    gate.serve(operator, (X, 1.3))
    with state.entering(RECORDING):
        assert served_by(gate, operator) == "kernel"


def test_generation_rises_only_when_a_recording_would_be_served_otherwise() -> None:
    gate, operator = Gate(FAST), _operator(right)
    gate.serve(operator, (X, 1.3))
    assert gate.generation() == 0, "verified before any recording"
    with state.entering(RECORDING):
        gate.serve(operator, (X, 1.3))
        gate.serve(operator, (X, 3.0))
    assert gate.generation() == 0
    gate.serve(operator, (X, 3.0))
    assert gate.generation() == 1, "a recording holds the reference, a direct call runs fused"
    with state.entering(RECORDING):
        gate.serve(_operator(no_kernel_image), (X, 4.0))
    gate.serve(_operator(no_kernel_image), (X, 4.0))
    assert gate.generation() == 1, "refused: the recording's reference stays right"


def test_a_verified_kernel_that_raises_later_is_refused_and_the_call_is_served() -> None:
    gate, fails = Gate(FAST), []

    def sometimes(x: torch.Tensor, factor: float) -> torch.Tensor:
        if fails:
            raise RuntimeError("CUDA error: invalid configuration")
        return right(x, factor)

    operator = _operator(sometimes)
    with state.entering(RECORDING):
        gate.serve(operator, (X, 1.3))
    gate.serve(operator, (X, 1.3))
    before = gate.generation()
    fails.append(True)
    assert torch.equal(gate.serve(operator, (X, 1.3)), reference(X, 1.3))
    assert gate.generation() == before + 1
    assert "invalid configuration" in next(iter(gate.verdicts().values())).reason


def test_what_is_at_hand_for_a_form_of_call_follows_its_verdict_and_the_numerics() -> None:
    times, num_calls = iter([[1.0, 2.0], [9.0, 2.0], [1.0, 2.0]]), 0

    def counted(x: torch.Tensor, factor: float) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return right(x, factor)

    gate, operator = Gate(lambda candidates: next(times)), _operator(counted, "close")

    def is_fused() -> bool:
        before = num_calls
        assert torch.equal(gate.serve(operator, (X, 1.3)), reference(X, 1.3))
        return num_calls > before

    gate.serve(operator, (X, 1.3))
    assert is_fused()
    with using_numerics("reference"):
        assert not is_fused()
    gate.recheck_speed(operator, (X, 1.3))
    assert not is_fused(), "it became slower"
    gate.recheck_speed(operator, (X, 1.3))
    assert is_fused()
    before = gate.generation()
    with state.entering(RECORDING):
        assert is_fused()
    gate._decide(next(iter(gate.verdicts())), Verdict(False, False, "it raised"))
    assert not is_fused()
    assert gate.generation() == before + 1, "the recording by what was at hand was noted"


def test_running_out_of_memory_is_the_callers_to_handle() -> None:
    def hungry(x: torch.Tensor, factor: float) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    gate = Gate(FAST)
    with pytest.raises(torch.OutOfMemoryError):
        gate.serve(_operator(hungry), (X, 1.3))
    assert gate.verdicts() == {}


@pytest.mark.parametrize(
    ("numerics", "exactness", "invariant", "server"),
    [
        ("fast", "close", False, "kernel"),
        ("reference", "close", True, "reference"),
        ("reference", "bit-exact", False, "kernel"),
        ("invariant", "close", False, "reference"),
        ("invariant", "close", True, "kernel"),
        ("invariant", "bit-exact", False, "kernel"),
    ],
)
def test_numerics(numerics: Any, exactness: Any, invariant: bool, server: str) -> None:
    operator = _operator(right, exactness, is_row_invariant=invariant)
    with using_numerics(numerics):
        assert served_by(Gate(FAST), operator) == server
    assert gate_module.current_numerics() == "fast"


def test_invariant_numerics_ignore_the_clock() -> None:
    operator = _operator(right, "close", is_row_invariant=True)
    with using_numerics("invariant"):
        assert served_by(Gate(_clock(9.0, 1.0)), operator) == "kernel"


def test_signatures_tell_apart_what_a_kernel_depends_on() -> None:
    operator = _operator(right)
    wide = torch.zeros(40, 16)
    calls = {
        "first": (wide[:, :8], 2.0),
        "dtype": (wide[:, :8].bfloat16(), 2.0),
        "width": (wide[:, :7], 2.0),
        "stride": (torch.zeros(40, 12)[:, :8], 2.0),
        "alignment": (wide[:, 1:9], 2.0),
        "row class": (wide[:3, :8], 2.0),
        "number": (wide[:, :8], 3.0),
        "its type": (wide[:, :8], 2),
    }
    signatures = {name: signature_of(operator, args) for name, args in calls.items()}
    # 2 == 2.0 in Python, so sameness is judged by what is printed as well.
    assert (
        len({repr(s) for s in signatures.values()}) == len(set(signatures.values())) == len(calls)
    )
    assert signature_of(operator, (wide[:20, :8], 2.0)) == signature_of(
        operator, (wide[:30, :8], 2.0)
    )
    options = Operator("probe", reference, right, "bit-exact", rows=("x",), options=())
    assert signature_of(options, calls["first"]) != signatures["first"]


def test_a_call_without_rows_runs_the_reference() -> None:
    gate = Gate(FAST)
    assert gate.serve(_operator(no_kernel_image), (X[:0], 2.0)).shape == (0, 6)
    assert gate.verdicts() == {}


def test_written_arguments_are_compared_and_the_callers_are_left_alone() -> None:
    def write(cache: torch.Tensor, x: torch.Tensor) -> None:
        cache[:2].copy_(x[:2])

    def writes_one_row(cache: torch.Tensor, x: torch.Tensor) -> None:
        cache[:1].copy_(x[:1])

    cache = torch.zeros(4, 6)
    for kernel, is_right in ((write, True), (writes_one_row, False)):
        operator = Operator("write", write, kernel, "bit-exact", rows=("x",), writes=("cache",))
        assert Gate(FAST).check(operator, (cache, X)).is_right is is_right
        assert not cache.any()


def test_the_gate_draws_nothing_from_the_callers_generator() -> None:
    state_before = torch.get_rng_state()
    Gate(FAST).serve(_operator(right), (X, 1.3))
    assert torch.equal(torch.get_rng_state(), state_before)
