"""Varying keeps what must stay; comparing says what differs and by how much."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import GateFailed
from ostinato.recording import gate

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, max_size=12), st.integers(1, 9), st.sampled_from(FLOATS))
def test_varied_values_keep_sign_scale_and_infinities(
    values: list[float], step: int, dtype: torch.dtype
) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).clamp(-1e4, 1e4).to(dtype)
    tensor = torch.where(torch.tensor(values, dtype=torch.float64).isinf(), torch.inf, tensor)
    varied = gate.vary(tensor, step)
    finite = tensor.isfinite()
    assert varied.shape == tensor.shape and varied.dtype == tensor.dtype
    assert gate.is_bit_exact(varied[~finite], tensor[~finite])
    assert torch.equal(torch.signbit(varied[finite]), torch.signbit(tensor[finite]))
    largest = tensor[finite].abs().max() if finite.any() else torch.zeros(())
    assert (varied[finite].abs() <= 1.5 * largest).all()


def test_floating_values_move_and_others_stay() -> None:
    for tensor in (torch.ones(5), torch.tensor([3.0]), torch.arange(4.0)):
        assert not torch.equal(gate.vary(tensor, 1), tensor)
    for tensor in (torch.arange(4), torch.tensor([True, False]), torch.zeros(0)):
        assert torch.equal(gate.vary(tensor, 1), tensor)


def test_bit_exact_means_equal_bytes() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.zeros(1)
    assert gate.is_bit_exact(nan, nan.clone()) and not gate.is_bit_exact(zero, -zero)
    assert not gate.is_bit_exact(zero, zero.double()) and not gate.is_bit_exact(zero, zero[None])
    complex_zero = torch.zeros(1, dtype=torch.complex64)
    assert not gate.is_bit_exact(complex_zero, complex_zero.conj_physical())
    assert gate.is_bit_exact(torch.ones(2, 2).t(), torch.ones(2, 2))


def test_distance() -> None:
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert gate.distance(b, a) == pytest.approx(0.1)
    inf = torch.tensor([float("inf"), 1.0])
    assert gate.distance(inf, inf) == 0.0 and gate.distance(inf, -inf) == float("inf")
    assert gate.distance(inf, torch.ones(2)) == float("inf")
    assert gate.distance(torch.tensor([1]), torch.tensor([2])) == float("inf")
    assert gate.distance(torch.zeros(2), torch.zeros(2)) == 0.0
    assert gate.distance(torch.ones(2), torch.zeros(2)) == float("inf")


def test_comparisons_refuse_with_the_result_and_the_size() -> None:
    one, more = torch.ones(3), torch.ones(3) * 1.001
    assert gate.compare_exact([one], [one], None, "x") == gate.Verdict(True, 0.0)
    with pytest.raises(GateFailed, match=r"result 1 of x is not .* 0.001"):
        gate.compare_exact([one, more], [one, one], None, "x")
    verdict = gate.compare_exact([more], [one], [0.001], "x")
    assert not verdict.is_exact and verdict.worst == pytest.approx(0.001, rel=1e-2)
    with pytest.raises(GateFailed):
        gate.compare_exact([more], [one], [0.0001], "x")
    assert gate.compare_close([more], [one], 0.01, "x").worst > 0
    with pytest.raises(GateFailed, match=r"at most 0\.0001"):
        gate.compare_close([more], [one], None, "x")
    with pytest.raises(GateFailed, match=r"at most 0\.0005"):
        gate.compare_close([more], [one], 0.0005, "x")


def test_spreads_larger_than_rounding_are_refused() -> None:
    gate.check_spread([1e-5, 0.0], [torch.ones(1), torch.ones(1, dtype=torch.int64)], "x")
    with pytest.raises(GateFailed, match="gate-not-repeatable"):
        gate.check_spread([0.1], [torch.ones(1)], "x")


@pytest.mark.parametrize(("num_bad", "counts"), [(0, True), (2, True), (3, False), (4, False)])
def test_half_of_the_values_must_be_finite(num_bad: int, counts: bool) -> None:
    tensor = torch.ones(4)
    tensor[:num_bad] = float("nan")
    if counts:
        gate.check_finite([tensor, torch.arange(3)], "x")
    else:
        with pytest.raises(GateFailed, match=f"{num_bad} of 4"):
            gate.check_finite([tensor], "x")
