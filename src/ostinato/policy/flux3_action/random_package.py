"""Writes a package of any sizes with random weights, for tests and benchmarks.

The published weights are not ours to ship, and speed does not depend on them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ostinato.errors import ConfigError
from ostinato.layers.decoder import DecoderConfig
from ostinato.policy.flux3_action import names
from ostinato.policy.flux3_action.config import read_package_config
from ostinato.policy.flux3_action.load import (
    CONFIGS,
    KIND,
    read_text_config,
    read_vae_config,
    seeded_source,
)
from ostinato.policy.flux3_action.text import TextEncoder
from ostinato.policy.flux3_action.transformer import Transformer
from ostinato.policy.flux3_action.vae import VaeEncoder
from ostinato.weights.manifest import write_manifest
from ostinato.weights.shards import SINGLE
from ostinato.weights.stacked import Parts

CPU = torch.device("cpu")
VARIANTS = {"base": (4, 4.0), "gd": (4, 1.0), "sd": (1, 1.0)}
"""Steps and scale of the video's guidance; actions are not guided. Each also as ``…-fp8r``."""


class Draw(NamedTuple):
    """Where weights come from; ``dtype``: of all that are not quantised."""

    seed: int
    dtype: torch.dtype
    device: torch.device


def write_random_package(
    directory: Path,
    raw: Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    config_name: str = CONFIGS[0],
    variant: str = "base",
    draw_on: torch.device = CPU,
) -> None:
    """Write transformer, ``vae/`` and ``text_encoder/`` below ``directory``.

    A ``variant`` other than ``base`` is a transformer below ``variants/``; the other two, which
    all variants share, are written unless they are there. ``draw_on``: a GPU draws billions of
    values in seconds, other ones than the CPU.

    ``raw`` is as in the shipped tiny model: ``package`` (the configuration as published), ``vae``
    and ``text_encoder``; missing or empty ones have the published sizes.
    """
    package = dict(raw["package"])
    package |= {"video_vae_id": "vae", "text_encoder_id": "text_encoder"}
    config = read_package_config(package)
    is_fp8 = config.quantization is not None
    dit = Transformer(config.dit, config.streams, is_fp8=is_fp8)
    unused = {
        "dit.vector_in.in_layer.weight": (config.dit.hidden_size, config.dit.vec_in_dim),
        "dit.vector_in.out_layer.weight": (config.dit.hidden_size, config.dit.hidden_size),
        "dit.final_layer.video_cond.linear.weight": (96, config.dit.hidden_size),
    }
    own = directory if variant == "base" else directory / "variants" / variant
    draw = Draw(seed, dtype, draw_on)
    _write_config(own, config_name, package)
    _write_tensors(own, dit, names.dit_parts(dit), draw, unused)
    write_manifest(own, KIND, (config_name, SINGLE))
    if not (directory / "vae" / SINGLE).exists():
        _write_vae(directory / "vae", dict(raw.get("vae") or {}), draw)
    if not (directory / "text_encoder" / SINGLE).exists():
        text_raw = dict(raw.get("text_encoder") or published_text_config())
        _write_text(directory / "text_encoder", text_raw, config.text_output_layers, draw)


def _write_vae(directory: Path, raw: Mapping[str, Any], draw: Draw) -> None:
    vae = VaeEncoder(read_vae_config(raw))
    frequencies = {"model.encoder.features.0.0.attn.rope.inv_freq": (4, vae.config.head_dim // 8)}
    _write_config(directory, "config.json", raw)
    _write_tensors(directory, vae, names.vae_parts(vae), draw, frequencies)


def _write_text(directory: Path, raw: Mapping[str, Any], taps: tuple[int, ...], draw: Draw) -> None:
    text = TextEncoder(read_text_config(raw), taps)
    _write_config(directory, "config.json", {**raw, "tokenizer": "bytes"})
    parts = names.text_parts(text, names.TEXT_PREFIXES[0])
    norm = {"model.language_model.norm.weight": (text.config.width,)}
    _write_tensors(directory, text, parts, draw, norm)


def published_droid(variant: str = "base") -> dict[str, Any]:
    """What ``write_random_package`` and ``load_seeded`` take, for one of the six DROID variants.

    The shift of the distilled packages is not published; the base's stands in for it.
    """
    name, _, quantization = variant.partition("-")
    if name not in VARIANTS or quantization not in ("", "fp8r"):
        raise ConfigError(f"variant is {variant!r}; expected {', '.join(VARIANTS)}, or …-fp8r")
    num_steps, guidance = VARIANTS[name]
    package = {
        "action_modality": "action_prediction_droid",
        "action_dim": 8,
        "chunk_size": 32,
        "camera_layout": "droid",
        "camera_keys": ["wrist", "left", "right"],
        "canvas_hw": [544, 736],
        "fps": 15.0,
        "gripper_flip_dims": [-1],
        "num_inference_steps": num_steps,
        "guidance_scale": guidance,
        "guidance_scale_action": 1.0,
        "sampler_shift": 5.0,
        "quantization": quantization or None,
    }
    return {"package": package, "vae": {}, "text_encoder": published_text_config()}


def published_text_config() -> dict[str, Any]:
    """Sizes of the text path of Qwen3-VL-4B under their published names."""
    sizes = DecoderConfig()
    return {
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.inner_width,
        "vocab_size": sizes.num_tokens,
        "rope_theta": sizes.theta,
        "rms_norm_eps": sizes.eps,
    }


def _write_config(directory: Path, name: str, content: Mapping[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _write_tensors(
    directory: Path,
    module: nn.Module,
    parts: Parts,
    draw: Draw,
    unused: Mapping[str, tuple[int, ...]],
) -> None:
    from safetensors.torch import save_file

    dtype = draw.dtype
    source = seeded_source(module, parts, seed=draw.seed, draw_on=draw.device)
    tensors = {}
    for name, tensor in source.read(source, device=CPU, dtype=None):
        is_kept = tensor.dtype == torch.float8_e4m3fn or name.endswith("weight_scale")
        tensors[name] = tensor if is_kept else tensor.to(dtype)
    tensors |= {name: torch.zeros(shape, dtype=dtype) for name, shape in unused.items()}
    save_file(tensors, str(directory / SINGLE))
