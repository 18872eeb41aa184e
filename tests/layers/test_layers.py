"""Each block's function against its formula, written out another way."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

from ostinato.kernels.activations import FUNCTIONS
from ostinato.kernels.rope import rope
from ostinato.layers.linear import Linear
from ostinato.layers.mlp import ACTIVATIONS, GatedMlp, Mlp, pack_mlps
from ostinato.layers.norm import LayerNorm, RMSNorm
from ostinato.layers.patch import PatchEmbed, PatchMerger, embed_patches
from ostinato.layers.rotary import AxialRotary, axial_frequencies, rotary_tables
from ostinato.weights.assign import assign
from ostinato.weights.random import random_tensors

M = TypeVar("M", bound=torch.nn.Module)


def filled(module: M) -> M:
    names = {name: name for name, _ in module.named_parameters()}
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    cpu = torch.device("cpu")
    assign(module, names, random_tensors(shapes, seed=1, device=cpu, dtype=torch.float64))
    return module


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_layer_norm() -> None:
    norm, x = filled(LayerNorm(12)), random(5, 12)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), expected * norm.weight + norm.bias)


def test_rms_norm_rounds_before_the_weight() -> None:
    norm, x = filled(RMSNorm(12)), random(5, 12).bfloat16()
    norm.weight = torch.nn.Parameter(norm.weight.bfloat16())
    exact = x.float() / (x.float().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(norm(x), norm.weight * exact.bfloat16())


def test_residual_and_norm_are_the_two_steps() -> None:
    for norm in (filled(LayerNorm(12)), filled(RMSNorm(12))):
        linear, x, rows = filled(Linear(7, 12)), random(5, 12), random(5, 7)
        normed, total = norm.after(linear, rows, x)
        assert torch.equal(total, linear(rows) + x)
        assert torch.equal(normed, norm(total))


def activated(name: str, x: Tensor) -> Tensor:
    return FUNCTIONS[ACTIVATIONS[name]](x)


def test_activations() -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    phi = torch.tensor([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()])
    torch.testing.assert_close(activated("gelu", x), x * phi.double(), rtol=1e-6, atol=1e-7)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    torch.testing.assert_close(activated("gelu_pytorch_tanh", x), x / 2 * (1 + inner.tanh()))
    torch.testing.assert_close(activated("quick_gelu", x), x / (1 + (-1.702 * x).exp()))


def test_mlps() -> None:
    x = random(5, 8)
    plain = filled(Mlp(8, 12, activation="quick_gelu", out_width=6))
    hidden = activated("quick_gelu", x @ plain.fc1.weight.T + plain.fc1.bias)
    torch.testing.assert_close(plain(x), hidden @ plain.fc2.weight.T + plain.fc2.bias)
    gated = filled(GatedMlp(8, 12, bias=True))
    gate = x @ gated.gate_proj.weight.T + gated.gate_proj.bias
    up = x @ gated.up_proj.weight.T + gated.up_proj.bias
    expected = (gate / (1 + (-gate).exp()) * up) @ gated.down_proj.weight.T
    expected = expected + gated.down_proj.bias
    alike = plain(x)
    pack_mlps(torch.nn.Sequential(gated, plain))
    torch.testing.assert_close(gated(x), expected)
    torch.testing.assert_close(plain(x), alike)
    assert plain.fc1.weight.shape == (48, 8)
    assert plain.fc1.bias.shape == (48,)
    assert plain.fc2.weight.shape == (6, 48)
    names = {name: tuple(p.shape) for name, p in gated.named_parameters()}
    assert names == {
        "gate_up_proj.weight": (96, 8),
        "gate_up_proj.bias": (96,),
        "down_proj.weight": (8, 48),
        "down_proj.bias": (8,),
    }
    gated.pack()
    torch.testing.assert_close(gated(x), expected)


def test_a_multiple_of_64_is_packed_without_widening() -> None:
    gated, x = filled(GatedMlp(8, 64, bias=False)), random(5, 8)
    gate, up = x @ gated.gate_proj.weight.T, x @ gated.up_proj.weight.T
    down = gated.down_proj.weight
    plain = filled(Mlp(8, 64, activation="gelu"))
    weights = [plain.fc1.weight, plain.fc2.weight]
    pack_mlps(torch.nn.Sequential(gated, plain))
    assert gated.down_proj.weight is down
    assert all(a is b for a, b in zip((plain.fc1.weight, plain.fc2.weight), weights, strict=True))
    torch.testing.assert_close(gated(x), (gate / (1 + (-gate).exp()) * up) @ down.T)


def test_linear_without_bias_has_no_such_parameter() -> None:
    linear, x = filled(Linear(8, 3, bias=False)), random(5, 8)
    assert [name for name, _ in linear.named_parameters()] == ["weight"]
    torch.testing.assert_close(linear(x), x @ linear.weight.T)


def test_rotation_is_a_complex_product() -> None:
    positions = torch.tensor([[0, 0], [3, 1], [7, 250]], dtype=torch.int32)
    cos, sin = rotary_tables(positions, axial_frequencies(16, 10000.0))
    x = random(3, 2, 16)
    pairs = torch.complex(x[..., :8], x[..., 8:])
    exponents = torch.arange(4) / 4
    row, column = positions[:, :1] * 10000.0**-exponents, positions[:, 1:] * 10000.0**-exponents
    turned = pairs * torch.exp(1j * torch.cat((row, column), 1).double())[:, None]
    expected = torch.cat((turned.real, turned.imag), -1)
    qkv = torch.cat((x, x, x), 1).flatten(1).float()
    q, _, v = rope(qkv, cos, sin, heads=2, head_dim=16)
    torch.testing.assert_close(q.double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(v, x.float())
    tables = AxialRotary(16, theta=10000.0)(positions)
    assert torch.equal(tables[0], cos)
    assert torch.equal(tables[1], sin)


def test_patch_embedding_is_the_convolution() -> None:
    embed = filled(PatchEmbed((3, 2, 4, 4), 10, bias=True))
    patches = random(6, 96)
    convolved = torch.nn.functional.conv3d(
        patches.view(6, 3, 2, 4, 4), embed.proj.weight, embed.proj.bias
    )
    torch.testing.assert_close(embed(patches), convolved.flatten(1))
    halved = embed_patches(patches.half(), embed.proj.weight, embed.proj.bias)
    assert halved.dtype == torch.float64


def test_merger_joins_neighbours_after_or_before_the_norm() -> None:
    x = random(8, 6)
    for after in (False, True):
        merger = filled(PatchMerger(LayerNorm, 6, 4, 5, norm_after_merge=after))
        joined = torch.stack([torch.cat(list(x[i : i + 4])) for i in (0, 4)])
        split = torch.cat([merger.norm(row[None]) for row in x]) if not after else None
        normed = merger.norm(joined) if split is None else split.view(2, 24)
        torch.testing.assert_close(merger(x), merger.mlp(normed))
        assert after or torch.equal(merger.project(merger.norm(x)), merger(x))
