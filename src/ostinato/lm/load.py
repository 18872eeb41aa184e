"""A decoder with its weights: from a directory, a hub name, a shipped tiny model or a transformers
module.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ostinato.errors import WeightsError
from ostinato.lm.fields import read_lm_config
from ostinato.lm.models.qwen import Qwen, published_parts
from ostinato.weights.config import read_config, read_json
from ostinato.weights.files import find_shipped, open_files
from ostinato.weights.loaded import ModuleTensors, module_config
from ostinato.weights.seeded import SeededTensors
from ostinato.weights.shards import StoredTensors
from ostinato.weights.stacked import Parts, Source, load_parts, stored_shapes

PREFIXES = ("model.language_model.", "model.")
"""Both generations of published names, newest first."""


def load_decoder(
    model: str | Path | nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Qwen:
    """The decoder of a checkpoint on one device; ``dtype``: as the configuration says if ``None``.

    ``model`` may be a whole transformers model, loaded: what is not stacked here is shared with it.
    Raises ``WeightsError`` naming the field, tensor or file that does not fit.
    """
    if isinstance(model, nn.Module):
        return _of_module(model, device, dtype)
    shipped = find_shipped(model) if isinstance(model, str) else None
    if shipped is not None:
        decoder = Qwen(read_lm_config(read_json(shipped, str(model))))
        parts = published_parts(decoder, prefix=PREFIXES[0])
        seeded = SeededTensors(stored_shapes(parts), seed=0)
        return _filled(decoder, parts, seeded, str(model), device, dtype or torch.float32)
    files = open_files(model, revision=revision)
    config = read_config(files)
    decoder = Qwen(read_lm_config(config))
    is_tied = decoder.config.is_tied

    def is_wanted(name: str) -> bool:
        if name.startswith("lm_head."):
            return not is_tied  # a copy of the embeddings where it is stored all the same
        return name.startswith("model.") and not name.startswith("model.visual.")

    stored = StoredTensors(files, is_wanted)
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in stored)), PREFIXES[0])
    parts = published_parts(decoder, prefix=prefix)
    return _filled(decoder, parts, stored, files.origin, device, dtype or _own_dtype(config))


def _of_module(module: nn.Module, device: torch.device, dtype: torch.dtype | None) -> Qwen:
    decoder = Qwen(read_lm_config(module_config(module)))
    wanted = (PREFIXES[0],) if decoder.config.is_tied else (PREFIXES[0], "lm_head.")
    parts = published_parts(decoder, prefix=PREFIXES[0])
    own = next(module.parameters()).dtype
    source = ModuleTensors(module, wanted)
    return _filled(decoder, parts, source, type(module).__name__, device, dtype or own)


def _filled(
    decoder: Qwen,
    parts: Parts,
    source: Source,
    origin: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Qwen:
    load_parts(decoder, parts, source, origin=origin, device=device, dtype=dtype)
    return decoder.eval()


def _own_dtype(config: dict[str, object]) -> torch.dtype:
    text = config.get("text_config")
    nested = text if isinstance(text, dict) else {}
    names = (config.get("dtype"), config.get("torch_dtype"), nested.get("dtype"))
    name = next((n for n in (*names, nested.get("torch_dtype")) if n), "float32")
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise WeightsError(f"dtype is {name!r}; expected a floating one")
    return dtype
