"""Towers whose linear layers are E4M3: near the bf16 ones, recorded as called, refused in words."""

from __future__ import annotations

import pytest
import torch

from ostinato import load_encoder
from ostinato.errors import ConfigError
from ostinato.layers.fp8 import Fp8Linear
from ostinato.layers.linear import Linear
from ostinato.vision.encoder import Encoder
from ostinato.vision.load import check_fp8_card, load_tower
from ostinato.vision.recorded import FP8_TOLERANCE
from ostinato.vision.tower import Tower
from tests.vision.encoders import TINY, make, patches_for, settle

GRIDS = [(1, 4, 4), (1, 8, 6)]
FURTHEST = 0.12
"""Norm of the difference over the norm, after a few layers of random weights: seen are 0.07 to
0.095, and cosines from 0.993."""


def fp8_tower(name: str) -> Tower:
    return load_tower(name, dtype=torch.bfloat16, quantization="fp8").eval()


def outputs(encoder: Encoder, patches: torch.Tensor) -> list[torch.Tensor]:
    return [result.packed.float() for result in encoder.encode_patches(patches, GRIDS)]


@pytest.mark.parametrize("name", TINY)
def test_an_fp8_tower_is_near_the_bf16_one_close(name: str) -> None:
    exact, _ = make(load_tower(name, dtype=torch.bfloat16).eval(), mode="off")
    ours, _ = make(fp8_tower(name), mode="off")
    patches = patches_for(exact, GRIDS)
    for want, got in zip(outputs(exact, patches), outputs(ours, patches), strict=True):
        distance = ((want - got).norm() / want.norm()).item()
        cosine = torch.cosine_similarity(want, got, dim=1).min().item()
        assert 0 < distance < FURTHEST, distance
        assert cosine > 0.99, cosine


@pytest.mark.parametrize("name", TINY)
def test_layers_of_fitting_sizes_are_e4m3_and_others_stay(name: str) -> None:
    plain, tower = load_tower(name, dtype=torch.bfloat16), fp8_tower(name)
    fitting = {
        name: layer
        for name, layer in plain.named_modules()
        if isinstance(layer, Linear) and not any(n % 16 for n in layer.weight.shape)
    }
    made = {n for n, layer in tower.named_modules() if isinstance(layer, Fp8Linear)}
    assert made == set(fitting) and made
    for layer_name, layer in fitting.items():
        got = tower.get_submodule(layer_name)
        assert isinstance(got, Fp8Linear)
        weight = got.weight.float() * got.weight_scale[:, None]
        allowed = layer.weight.float().abs() * 2**-4 + got.weight_scale[:, None] * 2**-10
        assert ((weight - layer.weight.float()).abs() <= allowed).all()


@pytest.mark.parametrize("name", TINY)
def test_recorded_equals_direct_bit_exact(name: str) -> None:
    tower = fp8_tower(name)
    encoder, recorded = make(tower, mode="exact", min_hits=1)
    patches = patches_for(encoder, GRIDS)
    first = outputs(encoder, patches)
    settle(recorded)
    again = encoder.encode_patches(patches, GRIDS)
    assert all(r.route.route != "direct" for r in again), again[0].route
    for want, got in zip(first, again, strict=True):
        assert torch.equal(want, got.packed.float())


def test_refusals_say_why() -> None:
    with pytest.raises(ConfigError, match="quantization is 'int4'; expected None or 'fp8'"):
        load_encoder("tiny-qwen3-vl", device="cpu", quantization="int4", warm_up=False)
    with pytest.raises(ConfigError, match=r"works on bfloat16, and the tower is torch\.float32"):
        load_tower("tiny-qwen3-vl", dtype=torch.float32, quantization="fp8")
    with pytest.raises(ConfigError, match=r"capability 8\.9 or newer.*; A100 has 8\.0"):
        check_fp8_card("A100", (8, 0))
    check_fp8_card("L4", (8, 9))


def test_recordings_of_an_fp8_tower_may_be_as_far_from_unpadded_calls_as_e4m3_makes_them() -> None:
    name = "tiny-qwen3-vl"
    plain = make(load_tower(name, dtype=torch.bfloat16).eval())[1]
    ours = make(fp8_tower(name))[1]
    chosen = make(fp8_tower(name), tolerance=0.01)[1]
    found = [one._served.config.tolerance for one in (plain, ours, chosen)]
    assert found == [None, FP8_TOLERANCE, 0.01]
