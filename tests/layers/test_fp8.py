"""The E4M3 linear layer against its dequantised product; fused producers against their chain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError
from ostinato.kernels.fp8 import quantize
from ostinato.kernels.modulate import modulate
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.fp8 import Fp8Linear, gated, modulated


def _has_row_scales() -> bool:
    values, scales = quantize(torch.ones(16, 16).bfloat16())
    try:
        torch._scaled_mm(
            values, values.t(), scale_a=scales, scale_b=scales.t(), out_dtype=torch.bfloat16
        )
    except RuntimeError:
        return False
    return True


multiplies = pytest.mark.skipif(
    not _has_row_scales(), reason="this torch multiplies E4M3 rows with scales on GPUs only"
)


def make(num_inputs: int, num_outputs: int) -> Fp8Linear:
    layer = Fp8Linear(num_inputs, num_outputs)
    weight = torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(0))
    scale = weight.abs().amax(1) / 448
    layer.weight = nn.Parameter((weight / scale[:, None]).to(torch.float8_e4m3fn), False)
    layer.weight_scale = nn.Parameter(scale, False)
    return layer


def rows(num: int, width: int) -> Tensor:
    return torch.randn(num, width, generator=torch.Generator().manual_seed(1)).bfloat16() * 3


@multiplies
@pytest.mark.parametrize("num_rows", [1, 16, 21])
def test_the_product_equals_the_dequantised_one_close(num_rows: int) -> None:
    layer, x = make(32, 48), rows(num_rows, 32)
    values, scales = quantize(x)
    wide = values.float() * scales
    expected = (wide @ (layer.weight.float() * layer.weight_scale[:, None]).T)[:num_rows]
    out = layer(x)
    assert out.shape == (num_rows, 48) and out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=2**-8, atol=1e-3)
    # and it is a quantisation of the real product, not something else
    exact = x.float() @ (layer.weight.float() * layer.weight_scale[:, None]).T
    assert (out.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_rows_are_padded_to_sixteen_with_zeros() -> None:
    values, scales = quantize(rows(21, 32))
    assert values.shape == (32, 32) and scales.shape == (32, 1)
    assert (values[21:].float() == 0).all() and (scales[21:] == 1e-12).all()


@multiplies
def test_fused_producers_equal_their_chain_bit_exact() -> None:
    x = rows(5, 32)
    scale, shift = rows(2, 32)[:1], rows(3, 32)[1:2]
    layer = make(32, 48)
    expected = layer(modulate(x, scale, shift))
    assert torch.equal(modulated(layer, x, scale, shift, segments=None), expected)
    packed = rows(5, 64)
    assert torch.equal(gated(layer, packed), layer(swiglu(packed)))


def test_sizes_are_multiples_of_sixteen() -> None:
    with pytest.raises(ConfigError, match="32 to 8"):
        Fp8Linear(32, 8)
