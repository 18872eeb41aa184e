"""gelu and swiglu: every activation, with and without bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.kernels import activations
from ostinato.kernels.gelu import gelu
from ostinato.kernels.swiglu import swiglu
from tests.kernels.agreement import assert_agrees
from tests.kernels.spelled import SPELLED

NAMES = sorted(activations.FUNCTIONS)


@pytest.fixture
def spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fn in SPELLED.items():
        monkeypatch.setitem(activations.FUNCTIONS, name, fn)


@pytest.mark.parametrize("name", NAMES)
def test_spelled_activation_is_torchs(name: str) -> None:
    x = torch.linspace(-12, 12, 4001)
    torch.testing.assert_close(SPELLED[name](x), activations.FUNCTIONS[name](x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_bit_exact_on_adversarial_rows(name: str, has_bias: bool, spelled: None) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 150)[:, :140]
    assert_agrees("gelu", x, torch.randn(140) if has_bias else None, name)
    assert_agrees("swiglu", x, torch.randn(140) if has_bias else None, name)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.integers(1, 9), width=st.integers(1, 600), pad=st.integers(0, 7))
def test_any_shape(rows: int, width: int, pad: int, spelled: None) -> None:
    x = torch.randn(rows, 2 * width + pad)[:, : 2 * width]
    assert_agrees("swiglu", x, torch.randn(2 * width), "silu")
    assert_agrees("gelu", x, None, "gelu_erf")


def test_erfs_gelu_is_close_on_adversarial_rows_and_everywhere() -> None:
    from ostinato.kernels.gelu import triton

    torch.manual_seed(0)
    assert_agrees("gelu_erf", torch.randn(12, 150)[:, :140], torch.randn(140), "gelu_erf")
    x = torch.linspace(-13, 13, 8 * 1024).view(8, 1024)
    wide = x.double()
    want = wide * torch.special.ndtr(wide)
    with np.errstate(all="ignore"):
        got = triton.gelu_erf(x, None, "gelu_erf").double()
    assert ((got - want).abs() <= 3e-7 * wide.abs()).all()
    # To the left, where torch's own 1 + erf has no digits left, relative to the value.
    is_left = (wide < 0) & (wide > -5)
    assert ((got - want).abs() <= 0.003 * want.abs())[is_left].all()


def test_swiglu_rounds_the_activation_before_the_product() -> None:
    packed = torch.randn(64, 128).bfloat16()
    gate, value = packed.chunk(2, -1)
    twice = torch.nn.functional.silu(gate) * value
    once = (torch.nn.functional.silu(gate.float()) * value.float()).bfloat16()
    assert torch.equal(swiglu(packed), twice)
    assert not torch.equal(once, twice)


def test_gate_is_the_first_half_and_bias_is_added() -> None:
    packed, bias = torch.randn(2, 3, 8), torch.randn(8)
    gate, value = (packed + bias).chunk(2, -1)
    want = torch.nn.functional.gelu(gate, approximate="tanh") * value
    assert torch.equal(swiglu(packed, bias, activation="gelu_tanh"), want)
    assert torch.equal(
        gelu(packed, bias, activation="silu"), torch.nn.functional.silu(packed + bias)
    )


def test_refusals() -> None:
    with pytest.raises(ValueError, match="'relu'"):
        gelu(torch.ones(2, 4), activation="relu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="even width"):
        swiglu(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"bias is torch\.float64"):
        gelu(torch.ones(2, 3), torch.ones(3).double())


def test_opcheck() -> None:
    x = torch.randn(4, 8)
    torch.library.opcheck(torch.ops.ostinato.gelu.default, (x, None, "silu"))
    torch.library.opcheck(torch.ops.ostinato.swiglu.default, (x, torch.ones(8), "silu"))
