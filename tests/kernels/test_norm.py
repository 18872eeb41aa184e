from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels import norm
from tests.kernels.agreement import assert_agrees

EPS = 1e-6


def _x(rows: int, width: int, stride: int | None = None, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(rows, stride or width)[:, :width]


@pytest.mark.parametrize("width", [1, 17, 64, 1100])
@pytest.mark.parametrize("affine", [False, True])
def test_norms_stay_within_their_bound_on_adversarial_rows(width: int, affine: bool) -> None:
    x, residual = _x(21, width, width + 8), _x(21, width, seed=1)
    weight = torch.randn(width) if affine else None
    bias = torch.randn(width) if affine else None
    assert_agrees("layer_norm", x, weight, bias, EPS)
    assert_agrees("rms_norm", x, weight, EPS)
    assert_agrees("add_layer_norm", x, residual, weight, bias, EPS)
    assert_agrees("add_rms_norm", x, residual, weight, EPS)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 30),
    width=st.integers(1, 150),
    pad=st.integers(0, 9),
    eps=st.sampled_from([1e-5, 1e-6, 1e-12]),
)
def test_any_shape_and_row_stride(rows: int, width: int, pad: int, eps: float) -> None:
    assert_agrees("add_layer_norm", _x(rows, width, width + pad), _x(rows, width), None, None, eps)
    assert_agrees("rms_norm", _x(rows, width, width + pad), torch.ones(width), eps)


def test_values_against_torch_in_double() -> None:
    x, weight, bias = _x(5, 96).double(), torch.randn(96).double(), torch.randn(96).double()
    got = norm.layer_norm(x.float(), weight.float(), bias.float(), EPS)
    want = torch.nn.functional.layer_norm(x, (96,), weight, bias, EPS)
    assert (got - want).abs().max() < 2e-6
    got = norm.rms_norm(x.float(), weight.float(), EPS)
    assert (got - torch.nn.functional.rms_norm(x, (96,), weight, EPS)).abs().max() < 2e-6


def test_leading_axes_are_kept_and_the_sum_is_returned() -> None:
    x, residual = _x(6, 32).view(2, 3, 32), _x(6, 32, seed=2).view(2, 3, 32)
    y, total = norm.add_rms_norm(x, residual, None, EPS)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, norm.rms_norm(x + residual, None, EPS))


def test_refuses_a_weight_of_another_width() -> None:
    with pytest.raises(ValueError, match=r"weight is \(31,\), expected \(32,\)"):
        norm.rms_norm(_x(2, 32), torch.ones(31), EPS)


def test_fake_tensors_and_opcheck() -> None:
    x, w = _x(4, 16), torch.ones(16)
    torch.library.opcheck(torch.ops.ostinato.layer_norm.default, (x, w, w, EPS))
    torch.library.opcheck(torch.ops.ostinato.add_rms_norm.default, (x, x + 1, w, EPS))
    out = torch.empty(4, 16)
    torch.ops.ostinato.rms_norm.out(x, w, EPS, out=out)
    assert torch.equal(out, norm.rms_norm(x, w, EPS))
