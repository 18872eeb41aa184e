"""Packages written to disk and read back: names, checksums, strictness, both precisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.errors import ConfigError, WeightsError
from ostinato.policy.flux3_action.load import load_model, read_text_config, read_vae_config
from ostinato.policy.flux3_action.random_package import (
    published_droid,
    published_text_config,
    write_random_package,
)
from ostinato.policy.flux3_action.transformer import is_quantised
from tests.policy.flux3_action import tiny


def stored(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(str(path / "model.safetensors")))


def rewrite(path: Path, change: Any) -> None:
    """Change a package's tensors and vouch for them."""
    from safetensors.torch import save_file

    from ostinato.weights.manifest import write_manifest

    tensors = stored(path)
    change(tensors)
    save_file(tensors, str(path / "model.safetensors"))
    write_manifest(path, "policy_export", ("config.native.json", "model.safetensors"))


@pytest.mark.parametrize("quantization", [None, "fp8r"])
def test_a_written_package_is_the_seeded_model_bit_exact(
    quantization: str | None, tmp_path: Path
) -> None:
    content = tiny.raw(quantization=quantization)
    write_random_package(tmp_path, content)
    read = load_model(tmp_path, device=tiny.CPU)
    made = tiny.loaded_with(torch.bfloat16, quantization=quantization)
    assert is_quantised(read.model) == (quantization is not None)
    for ours, theirs in ((read.model, made.model), (read.text, made.text)):
        expected = dict(theirs.named_parameters())
        for name, parameter in ours.named_parameters():
            same = parameter.view(torch.uint8) if parameter.element_size() == 1 else parameter
            other = expected[name]
            other = other.view(torch.uint8) if other.element_size() == 1 else other  # type: ignore
            assert torch.equal(same, other), name


def test_published_names_and_precisions_of_fp8r(tmp_path: Path) -> None:
    write_random_package(tmp_path, tiny.raw(quantization="fp8r"))
    tensors = stored(tmp_path)
    action = "action_prediction_droid"
    shapes = {
        f"dit.emb_in.{action}.weight": (64, 8),
        "dit.txt_in.weight": (64, 32),
        "dit.time_in.in_layer.weight": (64, 256),
        "dit.early_stream_modulations.txt.lin.weight": (192, 64),
        "dit.single_stream_modulations.video.lin.weight": (192, 64),
        f"dit.content_mode_blocks.{action}_cond.1.q_proj.weight": (64, 64),
        "dit.txt_mode_blocks.0.mlp_in.weight": (384, 64),
        "dit.single_blocks.1.mlp_out.weight": (64, 192),
        "dit.single_blocks.1.norm.query_norm.scale": (16,),
        f"dit.final_layer.{action}.linear.weight": (8, 64),
        "dit.final_layer.video.adaLN_modulation.1.weight": (128, 64),
        "dit.single_blocks.1.k_proj.weight_scale": (64,),
    }
    assert {name: tuple(tensors[name].shape) for name in shapes} == shapes
    bf16 = {n for n in tensors if n.endswith("weight") and tensors[n].dtype == torch.bfloat16}
    kept = ("emb_in", "early_stream_modulations", "single_stream_modulations", "final_layer")
    expected = {
        n
        for n in tensors
        if n.endswith("weight") and n.split(".")[1] in kept and n.split(".")[2].startswith(action)
    }
    unused = {n for n in bf16 if "vector_in" in n or "video_cond.linear" in n}
    assert bf16 - unused == expected and len(expected) == 8
    assert tensors[f"dit.content_mode_blocks.{action}.0.q_proj.weight"].dtype == torch.float8_e4m3fn
    vae, text = stored(tmp_path / "vae"), stored(tmp_path / "text_encoder")
    assert vae["model.encoder.patch_embed.proj.weight"].shape == (32, 3, 1, 4, 4)
    assert "model.encoder.features.6.attn.qkv.bias" in vae
    assert "model.encoder.features.8.0.mlp.down_proj.weight" in vae
    assert vae["model.encoder.features.10.reduction.weight"].shape == (256, 512)
    assert "model.language_model.layers.3.self_attn.k_proj.weight" in text


def test_checksums_are_verified(tmp_path: Path) -> None:
    write_random_package(tmp_path, tiny.raw())
    config = json.loads((tmp_path / "config.native.json").read_text())
    (tmp_path / "config.native.json").write_text(json.dumps(config | {"sampler_shift": 3.0}))
    with pytest.raises(WeightsError, match=r"config.native.json has checksum"):
        load_model(tmp_path, device=tiny.CPU)


def test_a_native_configuration_comes_first_and_a_plain_one_serves(tmp_path: Path) -> None:
    write_random_package(tmp_path / "plain", tiny.raw(), config_name="config.json")
    assert load_model(tmp_path / "plain", device=tiny.CPU).config.sampler_shift == 5.0
    write_random_package(tmp_path / "both", tiny.raw())
    (tmp_path / "both" / "config.json").write_text("{}")
    assert load_model(tmp_path / "both", device=tiny.CPU).config.sampler_shift == 5.0


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write_random_package(tmp_path, tiny.raw())
    name = "dit.single_blocks.0.q_proj.weight"
    rewrite(tmp_path, lambda t: t.update({"dit.new.weight": t[name].clone()}))
    with pytest.raises(WeightsError, match=r"not expected: dit.new.weight"):
        load_model(tmp_path, device=tiny.CPU)
    rewrite(tmp_path, lambda t: (t.pop("dit.new.weight"), t.update({name: t[name][:32].clone()})))
    with pytest.raises(
        WeightsError, match=r"q_proj.weight has shape \(32, 64\), expected \(64, 64"
    ):
        load_model(tmp_path, device=tiny.CPU)
    rewrite(tmp_path, lambda t: t.pop(name))
    with pytest.raises(WeightsError, match=f"missing: {name}"):
        load_model(tmp_path, device=tiny.CPU)


def test_tensors_of_dropped_streams_are_left_out(tmp_path: Path) -> None:
    content = tiny.raw()
    names = ("video", "video_cond", "action_prediction_droid", "action_prediction_droid_cond")
    streams = dict(zip(names, (96, 96, 8, 8), strict=True)) | {"image": 4}
    content["package"]["dit_config"]["streams"] = streams
    write_random_package(tmp_path, content)
    rewrite(tmp_path, lambda t: t.update({"dit.emb_in.image.weight": torch.zeros(64, 4)}))
    load_model(tmp_path, device=tiny.CPU)


def test_variants_are_folders(tmp_path: Path) -> None:
    for name in ("vae", "text_encoder"):
        (tmp_path / name).mkdir()
    write_random_package(tmp_path, tiny.raw())
    write_random_package(tmp_path / "variants" / "sd", tiny.raw(num_inference_steps=1))
    assert load_model(tmp_path, device=tiny.CPU, variant="sd").config.num_inference_steps == 1
    with pytest.raises(WeightsError, match=r"variants/gd: neither config.native.json nor"):
        load_model(tmp_path, device=tiny.CPU, variant="gd")


def test_parts_that_do_not_fit_together() -> None:
    with pytest.raises(ConfigError, match=r"fp8r package runs in bfloat16, not torch.float32"):
        tiny.loaded_with(torch.float32, quantization="fp8r")
    with pytest.raises(WeightsError, match="gives 16 channels; context_in_dim is 32"):
        tiny.loaded_with(text_output_layers=[2])
    with pytest.raises(WeightsError, match="no FLUX 3 Action model"):
        load_model("tiny-qwen3-vl", device=tiny.CPU)


def test_published_sizes_of_the_parts() -> None:
    vae, text = read_vae_config({}), read_text_config(published_text_config())
    assert vae.grids(544, 736) == [(136, 184), (68, 92), (34, 46), (17, 23)]
    assert (vae.embed_dim, vae.head_dim, vae.depths, vae.window) == (256, 64, (1, 4, 8, 8), 5)
    assert (text.width, text.num_heads, text.num_kv_heads, text.theta) == (2560, 32, 8, 5e6)
    with pytest.raises(WeightsError, match="hidden_size"):
        read_text_config({"rope_theta": 1.0})


@pytest.mark.parametrize(
    ("variant", "steps", "guidance", "quantization"),
    [
        ("base", 4, (4.0, 1.0), None),
        ("gd-fp8r", 4, (1.0, 1.0), "fp8r"),
        ("sd", 1, (1.0, 1.0), None),
    ],
)
def test_droid_variants(
    variant: str, steps: int, guidance: tuple[float, float], quantization: str | None
) -> None:
    from ostinato.policy.flux3_action.config import read_package_config

    config = read_package_config(published_droid(variant)["package"])
    assert (config.num_inference_steps, config.guidance()) == (steps, guidance)
    assert config.quantization == quantization and config.latent_hw == (17, 20)
    with pytest.raises(ConfigError, match="variant is 'xl'"):
        published_droid("xl")


def test_published_numbers_of_parameters() -> None:
    from ostinato.policy.flux3_action.config import read_package_config
    from ostinato.policy.flux3_action.transformer import Transformer
    from ostinato.policy.flux3_action.vae import VaeEncoder

    config = read_package_config(
        {"action_modality": "action_prediction_droid", "action_dim": 8, "chunk_size": 32}
    )
    dit = Transformer(config.dit, config.streams)

    def count(module: torch.nn.Module) -> float:
        return sum(p.numel() for p in module.parameters()) / 1e6

    assert count(dit.single_blocks) == pytest.approx(3435, abs=1)
    assert count(dit.content_mode_blocks) == pytest.approx(2454, abs=1)
    assert count(dit.txt_mode_blocks) == pytest.approx(613, abs=1)
    assert count(dit.single_blocks[0]) == pytest.approx(122.68, abs=0.01)
    vae = VaeEncoder(read_vae_config({}))
    assert count(vae) == pytest.approx(649, abs=1)
    assert sum(name.endswith("attn.qkv.weight") for name, _ in vae.named_parameters()) == 23


@pytest.mark.parametrize(("variant", "transformer_gb"), [("base", 13.8), ("base-fp8r", 7.0)])
def test_bytes_of_the_weights_are_the_documented_ones(variant: str, transformer_gb: float) -> None:
    from ostinato.policy.flux3_action.config import read_package_config
    from ostinato.policy.flux3_action.load import _build

    raw = published_droid(variant)
    config = read_package_config(raw["package"])
    model, text = _build(config, read_vae_config({}), raw["text_encoder"], torch.bfloat16)

    def gigabytes(module: torch.nn.Module) -> float:
        def each(name: str, p: torch.Tensor) -> int:
            is_kept = p.dtype == torch.float8_e4m3fn or name.endswith("weight_scale")
            return p.numel() * (p.element_size() if is_kept else 2)

        return sum(each(name, p) for name, p in module.named_parameters()) / 1e9

    assert gigabytes(model.dit) == pytest.approx(transformer_gb, abs=0.05)
    assert gigabytes(model.vae) == pytest.approx(1.3, abs=0.05)
    assert gigabytes(text) == pytest.approx(7.2, abs=0.05)
    assert gigabytes(text.decoder.layers[0]) == pytest.approx(0.2, abs=0.01)
