"""The E4M3 linear layer against its dequantised product; fused producers against their chain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError
from ostinato.kernels.fp8 import quantize
from ostinato.kernels.modulate import modulate
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.fp8 import (
    Fp8Linear,
    Quantised,
    gated,
    modulated,
    quantise_linears,
    quantised_linear,
)
from ostinato.layers.linear import Linear
from ostinato.layers.mlp import Mlp
from ostinato.layers.norm import LayerNorm, RMSNorm


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


def plain(num_inputs: int, num_outputs: int, seed: int) -> Linear:
    layer = Linear(num_inputs, num_outputs)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5
    layer.weight = nn.Parameter(weight.bfloat16(), False)
    layer.bias = nn.Parameter(torch.randn(num_outputs, generator=generator).bfloat16(), False)
    return layer


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_a_norm_gives_what_the_layer_behind_it_takes_bit_exact(
    kind: type[LayerNorm | RMSNorm],
) -> None:
    norm = kind(32)
    norm.weight = nn.Parameter(rows(1, 32)[0], False)
    if isinstance(norm, LayerNorm):
        norm.bias = nn.Parameter(rows(2, 32)[1], False)
    first, then = quantised_linear(plain(48, 32, 2)), quantised_linear(plain(32, 64, 3))
    before, x = rows(21, 48), rows(21, 32)
    quantised, total = norm.after(first, before, x, then)
    assert isinstance(quantised, Quantised)
    assert torch.equal(total, first(before) + x)
    assert torch.equal(then(quantised), then(norm(total)))
    assert torch.equal(then(norm.before(then, x)), then(norm(x)))
    unquantised, same = norm.after(first, before, x)
    assert torch.equal(same, total)
    assert isinstance(unquantised, Tensor) and torch.equal(unquantised, norm(total))


def test_a_rounded_layer_is_near_its_own_close() -> None:
    layer, x = plain(64, 48, 4), rows(21, 64)
    want, got = layer(x).float(), quantised_linear(layer)(x).float()
    assert 0 < (want - got).norm() < 0.06 * want.norm()
    assert torch.equal(quantised_linear(layer)(x * 0)[0], layer(x * 0)[0])  # the bias alone


def test_layers_of_other_sizes_stay() -> None:
    mlp = Mlp(32, 40, activation="gelu", out_width=48)
    mlp.fc1, mlp.fc2 = plain(32, 40, 5), plain(40, 48, 6)
    assert quantise_linears(mlp) == 0
    mlp.fc1, mlp.fc2 = plain(32, 64, 5), plain(64, 40, 6)
    x = rows(5, 32)
    want = mlp(x).float()
    assert quantise_linears(mlp) == 1 and isinstance(mlp.fc2, Linear)
    assert (mlp(x).float() - want).norm() < 0.06 * want.norm()
