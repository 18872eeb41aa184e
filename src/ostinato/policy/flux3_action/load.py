"""A model with its weights, from a package directory, a hub name or the shipped tiny model.

A package holds the transformer and names the video VAE and the text encoder: folders inside it,
other directories, or hub names. The transformer's weights and configuration are checked against
the package's manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ostinato.errors import ConfigError, WeightsError
from ostinato.layers.decoder import DecoderConfig
from ostinato.policy.flux3_action import names
from ostinato.policy.flux3_action.config import ActionConfig, read_package_config
from ostinato.policy.flux3_action.model import ActionModel
from ostinato.policy.flux3_action.text import PAD_TOKEN, TextEncoder
from ostinato.policy.flux3_action.vae import VaeConfig
from ostinato.weights.config import read_config, read_json
from ostinato.weights.files import Files, LocalFiles, SubFolder, find_shipped, open_files
from ostinato.weights.manifest import verify_manifest
from ostinato.weights.seeded import SeededTensors
from ostinato.weights.shards import SINGLE, StoredTensors
from ostinato.weights.stacked import Parts, load_parts, stored_shapes
from ostinato.weights.tokenizer import ByteTokenizer, InstructionTokenizer, PublishedTokenizer

KIND = "policy_export"
CONFIGS = ("config.native.json", "config.json")


@dataclass(frozen=True)
class Loaded:
    """``model`` has its weights on one device, ``text`` there or on the host; ``origin`` is for
    messages.
    """

    origin: str
    config: ActionConfig
    model: ActionModel
    text: TextEncoder
    tokenizer: InstructionTokenizer


def load_model(
    model: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    variant: str = "base",
    revision: str | None = None,
    text_device: torch.device | None = None,
) -> Loaded:
    """Load everything a policy needs, the text encoder onto ``text_device`` where that is given.

    ``dtype`` is bfloat16 unless given (float32 for the tiny model on the CPU). ``variant`` is the
    folder below ``variants/``; ``base`` is the package's root. Raises ``WeightsError`` or
    ``ConfigError`` naming the file, tensor or field that does not fit.
    """
    shipped = find_shipped(model) if isinstance(model, str) else None
    if shipped is not None:
        default = torch.float32 if device.type == "cpu" else torch.bfloat16
        return load_seeded(
            read_json(shipped, str(model)),
            str(model),
            device=device,
            dtype=dtype or default,
            text_device=text_device,
        )
    root = open_files(model, revision=revision)
    files = root if variant == "base" else SubFolder(root, f"variants/{variant}")
    return _from_package(root, files, device, text_device or device, dtype or torch.bfloat16)


def load_seeded(
    raw: Mapping[str, Any],
    origin: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    draws_on_device: bool = False,
    text_device: torch.device | None = None,
) -> Loaded:
    """Random weights of the sizes in ``raw``: ``package``, ``vae`` and ``text_encoder``.

    ``draws_on_device``: billions of them in seconds, but other values on another device.
    """
    if set(raw) - {"model_type"} != {"package", "vae", "text_encoder"}:
        raise WeightsError(f"{origin} is no FLUX 3 Action model: it holds {sorted(raw)}")
    config = read_package_config(raw["package"])
    model, text = _build(config, read_vae_config(raw["vae"]), raw["text_encoder"], dtype)
    text_parts = names.text_parts(text, names.TEXT_PREFIXES[0])
    everything: list[tuple[nn.Module, Parts, torch.device]] = [
        (model.dit, names.dit_parts(model.dit), device),
        (model.vae, names.vae_parts(model.vae), device),
        (text, text_parts, text_device or device),
    ]
    for module, parts, where in everything:
        draw_on = device if draws_on_device else torch.device("cpu")
        source = seeded_source(module, parts, seed=seed, draw_on=draw_on)
        load_parts(module, parts, source, origin=origin, device=where, dtype=dtype)
    return _finished(origin, config, model, text, ByteTokenizer(), device, dtype)


def seeded_source(
    module: nn.Module, parts: Parts, *, seed: int, draw_on: torch.device | None = None
) -> SeededTensors:
    """Random tensors under the published names of ``parts``."""
    shapes = stored_shapes(parts)
    return SeededTensors(
        shapes,
        seed=seed,
        draw_on=draw_on,
        quantised=names.quantised_names(module, parts),
        positive=[name for name in shapes if name.endswith("running_var")],
    )


def read_package(files: Files) -> tuple[str, ActionConfig]:
    """The package's configuration and the name of the file it stands in."""
    for name in CONFIGS:
        path = files.find(name)
        if path is not None:
            return name, read_package_config(read_json(path, f"{files.origin}: {name}"))
    raise WeightsError(f"{files.origin}: neither {' nor '.join(CONFIGS)}")


def _from_package(
    root: Files,
    files: Files,
    device: torch.device,
    text_device: torch.device,
    dtype: torch.dtype,
) -> Loaded:
    config_name, config = read_package(files)
    verify_manifest(files, KIND, (config_name, SINGLE))
    vae_files = _part_files(root, config.video_vae_id)
    text_files = _part_files(root, config.text_encoder_id)
    vae_raw = read_config(vae_files) if vae_files.find("config.json") else {}
    text_raw = read_config(text_files)
    model, text = _build(config, read_vae_config(vae_raw), text_raw, dtype)
    _load(
        model.dit, names.dit_parts(model.dit), files, names.is_wanted_by_dit(config), device, dtype
    )
    _load(model.vae, names.vae_parts(model.vae), vae_files, names.is_wanted_by_vae, device, dtype)
    prefix = _text_prefix(text_files)
    is_wanted = names.is_wanted_by_text(prefix, max(text.taps))
    _load(text, names.text_parts(text, prefix), text_files, is_wanted, text_device, dtype)
    tokenizer: InstructionTokenizer
    if text_raw.get("tokenizer") == "bytes":
        tokenizer = ByteTokenizer()
    else:
        tokenizer = PublishedTokenizer(text_files.origin, pad_token=PAD_TOKEN)
    return _finished(files.origin, config, model, text, tokenizer, device, dtype)


def _load(
    module: nn.Module,
    parts: Parts,
    files: Files,
    is_wanted: Callable[[str], bool],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    stored = StoredTensors(files, is_wanted)
    load_parts(module, parts, stored, origin=files.origin, device=device, dtype=dtype)


def _build(
    config: ActionConfig, vae: VaeConfig, text_raw: Mapping[str, Any], dtype: torch.dtype
) -> tuple[ActionModel, TextEncoder]:
    if config.quantization is not None and dtype != torch.bfloat16:
        raise ConfigError(f"a {config.quantization} package runs in bfloat16, not {dtype}")
    if vae.z_dim != config.dit.channels("video_cond"):
        raise WeightsError(
            f"the video VAE has {vae.z_dim} channels; the transformer takes "
            f"{config.dit.channels('video_cond')}"
        )
    text = TextEncoder(read_text_config(text_raw), config.text_output_layers)
    if text.context_width != config.dit.context_in_dim:
        raise WeightsError(
            f"the text encoder gives {text.context_width} channels; context_in_dim is "
            f"{config.dit.context_in_dim}"
        )
    return ActionModel(config, vae), text


def _finished(
    origin: str,
    config: ActionConfig,
    model: ActionModel,
    text: TextEncoder,
    tokenizer: InstructionTokenizer,
    device: torch.device,
    dtype: torch.dtype,
) -> Loaded:
    model.set_constants(device, dtype)
    return Loaded(origin, config, model.eval(), text.eval(), tokenizer)


def read_vae_config(raw: Mapping[str, Any]) -> VaeConfig:
    """Fields of ``VaeConfig`` by name; the published sizes where nothing is given."""
    known = {field.name for field in fields(VaeConfig)}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in known}
    config = VaeConfig(**given)  # type: ignore[arg-type]
    if not len(config.depths) == len(config.num_heads) == len(config.temporal):
        raise WeightsError(f"VAE config: depths, num_heads and temporal differ: {raw}")
    return config


def read_text_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Of a Qwen3 text model, or of a Qwen3-VL model's ``text_config``."""
    text = raw.get("text_config") or raw
    rope = text.get("rope_parameters") or {}
    stored = {
        "width": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "inner_width": "intermediate_size",
        "num_tokens": "vocab_size",
        "eps": "rms_norm_eps",
    }
    missing = [name for name in stored.values() if text.get(name) is None]
    theta = text.get("rope_theta") or rope.get("rope_theta")
    if missing or theta is None:
        raise WeightsError(f"text config: {', '.join([*missing] or ['rope_theta'])} missing")
    return DecoderConfig(theta=float(theta), **{ours: text[name] for ours, name in stored.items()})


def _part_files(root: Files, name: str) -> Files:
    """A folder of the package, else what ``open_files`` takes."""
    inside = Path(root.origin) / name
    if isinstance(root, LocalFiles) and inside.is_dir():
        return LocalFiles(inside)
    return open_files(name)


def _text_prefix(files: Files) -> str:
    ending = "embed_tokens.weight"
    found = [n.removesuffix(ending) for n in StoredTensors(files, lambda n: n.endswith(ending))]
    if len(found) != 1 or found[0] not in names.TEXT_PREFIXES:
        raise WeightsError(f"{files.origin}: no text model: {found} hold {ending}")
    return found[0]
