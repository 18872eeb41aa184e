"""A tower with its weights, from whatever the user has: directory, hub name, module, tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ostinato.errors import ConfigError, WeightsError
from ostinato.layers.copies import forget
from ostinato.layers.fp8 import quantise_linears
from ostinato.layers.mlp import pack_mlps
from ostinato.vision.fields import Fields
from ostinato.vision.registry import Family, find_family
from ostinato.vision.tower import Tower
from ostinato.weights.assign import assign, check_shapes, published_names
from ostinato.weights.config import read_config, read_json
from ostinato.weights.device import find_device
from ostinato.weights.files import Files, find_shipped, open_files
from ostinato.weights.loaded import find_tower, module_config, module_shapes, module_tensors
from ostinato.weights.random import random_tensors
from ostinato.weights.shards import StoredTensors

PREFIXES = ("model.visual.", "visual.")
"""Both generations of published names, newest first."""

FP8_CAPABILITY = (8, 9)


def load_tower(
    model: str | Path | nn.Module,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    quantization: str | None = None,
) -> Tower:
    """Load a vision tower (see ``EncoderModel``) with all its weights on one device.

    ``model``: a checkpoint directory, a hub name, a shipped tiny model, or a transformers module (a
    tower or a model with one), whose parameters are shared where device and ``dtype`` fit. Those of
    feed-forward layers may be copies (``pack_mlps``), which follow changes that torch counts; what
    is converted or rounded does not. Without ``device`` a module's tower stays where it is and
    others go to the CPU; without ``dtype`` the stored one is kept. ``quantization="fp8"`` rounds
    the loaded linear layers to E4M3, those of sizes that are multiples of 16, and asks for
    bfloat16. Raises ``WeightsError`` naming the tensor, field or file that does not fit, or
    ``ConfigError``.
    """
    if quantization not in (None, "fp8"):
        raise ConfigError(f"quantization is {quantization!r}; expected None or 'fp8'")
    tower = _load(model, device, dtype, revision)
    pack_mlps(tower)
    if quantization is not None:
        _quantise(tower)
    return tower


def check_fp8_card(name: str, capability: tuple[int, int]) -> None:
    """Refuse a GPU that does not multiply E4M3 rows with scales (``ConfigError``)."""
    if capability < FP8_CAPABILITY:
        raise ConfigError(
            "quantization 'fp8' needs a GPU of compute capability 8.9 or newer, which multiplies "
            f"E4M3; {name} has {'.'.join(map(str, capability))}"
        )


def _quantise(tower: Tower) -> None:
    first = next(tower.parameters())
    if first.dtype != torch.bfloat16:
        raise ConfigError(f"quantization 'fp8' works on bfloat16, and the tower is {first.dtype}")
    if first.is_cuda:
        name = torch.cuda.get_device_name(first.device)
        check_fp8_card(name, torch.cuda.get_device_capability(first.device))
    with torch.no_grad():
        quantise_linears(tower)
    forget(tower)


def _load(
    model: str | Path | nn.Module,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    revision: str | None,
) -> Tower:
    if isinstance(model, nn.Module):
        source = find_tower(model)
        first = next(source.parameters(), None)
        own = torch.device("cpu") if first is None else first.device
        return _from_module(source, own if device is None else find_device(device), dtype)
    where = find_device("cpu" if device is None else device)
    shipped = find_shipped(model) if isinstance(model, str) else None
    if shipped is not None:
        return _from_seed(read_json(shipped, str(model)), where, dtype)
    return _from_files(open_files(model, revision=revision), where, dtype)


def tower_config(config: Mapping[str, Any]) -> tuple[Family, Fields]:
    """Family and vision fields of a ``config.json``: of a whole model, or of a tower alone."""
    family = find_family(config.get("model_type"))
    if str(config["model_type"]).endswith("_vision"):
        return family, Fields(config)
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        raise WeightsError(f"config.json has no vision_config object, got {vision!r}")
    return family, Fields(vision)


def _from_files(files: Files, device: torch.device, dtype: torch.dtype | None) -> Tower:
    config = read_config(files)
    family, fields = tower_config(config)
    tower = family.build(family.read_config(fields))
    is_tower_alone = str(config["model_type"]).endswith("_vision")
    prefixes = ("",) if is_tower_alone else PREFIXES
    stored = StoredTensors(files, lambda name: name.startswith(prefixes))
    prefix = _one_prefix(stored, prefixes, files.origin)
    shapes = {name.removeprefix(prefix): shape for name, shape in stored.items()}
    names = published_names(tower, family.published_name)
    check_shapes(tower, names, shapes, origin=files.origin, prefix=prefix)
    tensors = stored.read((prefix + name for name in names), device=device, dtype=dtype)
    assign(tower, names, ((name.removeprefix(prefix), tensor) for name, tensor in tensors))
    return tower


def _from_module(source: nn.Module, device: torch.device, dtype: torch.dtype | None) -> Tower:
    family, fields = tower_config(_as_tower_config(module_config(source)))
    tower = family.build(family.read_config(fields))
    names = published_names(tower, family.published_name)
    check_shapes(tower, names, module_shapes(source), origin=type(source).__name__)
    assign(tower, names, module_tensors(source, device=device, dtype=dtype))
    return tower


def _from_seed(config: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None) -> Tower:
    family, fields = tower_config(config)
    tower = family.build(family.read_config(fields))
    names = published_names(tower, family.published_name)
    shapes = {name: tuple(tower.get_parameter(ours).shape) for name, ours in names.items()}
    assign(tower, names, random_tensors(shapes, seed=0, device=device, dtype=dtype))
    return tower


def _one_prefix(names: Mapping[str, Any], prefixes: tuple[str, ...], origin: str) -> str:
    """The generation that the stored names follow; a mix or none of them is an error."""
    first = {p: next((n for n in names if n.startswith(p)), None) for p in prefixes}
    found = [p for p in prefixes if first[p] is not None]
    if len(found) == 1:
        return found[0]
    if not found:
        raise WeightsError(f"{origin}: no tensor is named {' or '.join(p + '…' for p in prefixes)}")
    raise WeightsError(
        f"{origin}: two generations of names, {' and '.join(str(first[p]) for p in found)}"
    )


def _as_tower_config(config: dict[str, Any]) -> dict[str, Any]:
    """A module's own configuration; older transformers give a tower the model's type."""
    kind = str(config.get("model_type"))
    return config if kind.endswith("_vision") else config | {"model_type": f"{kind}_vision"}
