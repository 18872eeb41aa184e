"""The shipped tiny model and what tests need of it, made once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ostinato.assets
from ostinato.policy.flux3_action.load import Loaded, load_model, load_seeded
from ostinato.policy.flux3_action.names import dit_parts, text_parts, vae_parts
from ostinato.policy.flux3_action.text import pad_ids

NAME = "tiny-flux3-action"
CPU = torch.device("cpu")


def raw(**package: Any) -> dict[str, Any]:
    """The shipped configuration with some package fields changed."""
    path = Path(ostinato.assets.__file__).parent / f"{NAME}.json"
    content: dict[str, Any] = json.loads(path.read_text())
    content["package"] |= package
    return content


@cache
def loaded() -> Loaded:
    return load_model(NAME, device=CPU)


def loaded_with(dtype: torch.dtype = torch.float32, **package: Any) -> Loaded:
    return load_seeded(raw(**package), "test", device=CPU, dtype=dtype)


def published(model: Loaded, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Every weight under its published name."""
    found = {}
    for module, parts in (
        (model.model.dit, dit_parts(model.model.dit)),
        (model.model.vae, vae_parts(model.model.vae)),
        (model.text, text_parts(model.text, "model.language_model.")),
    ):
        for name, stack in parts.items():
            pieces = module.get_parameter(name).split([p.shape[0] for p in stack])
            found |= {p.name: t.to(dtype) for p, t in zip(stack, pieces, strict=True)}
    return found


def context(model: Loaded, instruction: str) -> Tensor:
    config = model.config
    ids, num_real = pad_ids(
        model.tokenizer.encode(instruction),
        multiple=config.text_pad_multiple,
        max_length=config.text_max_length,
        pad_token=model.tokenizer.pad_token,
    )
    out: Tensor = model.text(torch.tensor(ids), num_real)
    return out


def observation(seed: int = 0, **more: Any) -> dict[str, Any]:
    """Three camera frames of 36x64, a state, and an instruction."""
    rng = np.random.default_rng(seed)
    frames = {
        n: rng.integers(0, 256, (36, 64, 3), dtype=np.uint8) for n in ("wrist", "left", "right")
    }
    state = rng.uniform(-1, 1, 8).astype(np.float32)
    return {"images": frames, "state": state, "prompt": "pick up the cup"} | more
