"""modulate and gate_residual: they share how a row finds its segment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kernels.gate_residual import gate_residual
from ostinato.kernels.modulate import modulate
from tests.kernels.agreement import assert_agrees


@pytest.mark.parametrize("width", [1, 48, 300])
@pytest.mark.parametrize("index", [None, torch.int32, torch.int64])
def test_adversarial_rows(width: int, index: torch.dtype | None) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(13, width + 4)[:, :width], torch.randn(13, width)
    segments = None if index is None else torch.randint(3, (13,), dtype=index)
    # Views of one projection, as models hand them over.
    triple = torch.randn(1 if index is None else 3, 3 * width)
    shift, scale, gate = triple.chunk(3, dim=1)
    assert_agrees("modulate", x, scale, shift, segments, 1e-6)
    assert_agrees("gate_residual", x, y, gate, segments, None)
    assert_agrees("gate_residual", x, y, gate, segments, torch.randn(13, width + 2)[:, :width])


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 20), width=st.integers(1, 200), tables=st.integers(1, 5))
def test_any_shape(rows: int, width: int, tables: int) -> None:
    x, y = torch.randn(rows, width), torch.randn(rows, width)
    table, segments = torch.randn(tables, width), torch.randint(tables, (rows,))
    assert_agrees("gate_residual", x, y, table, segments, y)
    assert_agrees("modulate", x, table, table.flip(0), segments, 1e-5)


def test_each_segment_gets_its_own_row() -> None:
    x, segments = torch.randn(6, 8), torch.tensor([1, 0, 0, 1, 1, 0])
    scale, shift = torch.randn(2, 8), torch.randn(2, 8)
    together = modulate(x, scale, shift, segments=segments)
    gated = gate_residual(x, x + 1, scale, segments=segments)
    for s in (0, 1):
        rows = segments == s
        assert torch.equal(together[rows], modulate(x[rows], scale[[s]], shift[[s]]))
        assert torch.equal(gated[rows], x[rows] + scale[s] * (x[rows] + 1))


def test_values_against_double() -> None:
    x, scale, shift = torch.randn(2, 5, 64), torch.randn(1, 64), torch.randn(1, 64)
    normed = torch.nn.functional.layer_norm(x.double(), (64,), eps=1e-6)
    want = (1 + scale.double()) * normed + shift.double()
    assert (modulate(x, scale, shift) - want).abs().max() < 1e-5


def test_the_gated_product_rounds_before_the_sum() -> None:
    x, y, gate = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16(), torch.ones(1, 64)
    gate = gate.mul(1.3).bfloat16()
    once = (x.float() + gate.float() * y.float()).bfloat16()
    assert torch.equal(gate_residual(x, y, gate), x + gate * y)
    assert not torch.equal(once, x + gate * y)
    plus = torch.randn(64, 64).bfloat16()
    assert torch.equal(gate_residual(x, y, gate, plus=plus), x + gate * (y + plus))
    once = x + (gate.float() * (y.float() + plus.float())).bfloat16()
    assert not torch.equal(once, x + gate * (y + plus))


def test_refusals() -> None:
    x = torch.ones(4, 8)
    with pytest.raises(ValueError, match="scale has 2 rows, segments are missing"):
        modulate(x, torch.ones(2, 8), torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"segments is \(3,\), expected \(4,\)"):
        gate_residual(x, x, torch.ones(2, 8), segments=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"plus is \(3, 8\), expected \(4, 8\)"):
        gate_residual(x, x, torch.ones(1, 8), plus=x[:3])


def test_opcheck() -> None:
    x, table, segments = torch.randn(4, 8), torch.randn(2, 8), torch.tensor([0, 1, 1, 0])
    ops = torch.ops.ostinato
    torch.library.opcheck(ops.modulate.default, (x, table, table, segments, 1e-6))
    torch.library.opcheck(ops.gate_residual.default, (x, x + 1, table, segments, None))
    torch.library.opcheck(ops.gate_residual.default, (x, x + 1, table, segments, x - 1))
