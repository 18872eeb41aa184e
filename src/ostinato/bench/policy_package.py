"""Random weights of a variant, of the published sizes or tiny: loaded, or written as a package."""

from __future__ import annotations

from pathlib import Path

import torch

from ostinato.errors import ConfigError
from ostinato.policy.flux3_action.load import Loaded, load_seeded
from ostinato.policy.flux3_action.random_package import published_droid, write_random_package
from ostinato.weights.config import read_json
from ostinato.weights.files import find_shipped

OF_VARIANT = ("num_inference_steps", "guidance_scale", "quantization")
"""What a variant changes of a package's configuration."""


def variant_config(variant: str, model: str | None) -> dict[str, object]:
    """``package``, ``vae`` and ``text_encoder`` of a variant; ``model``: a shipped tiny one."""
    published = published_droid(variant)
    if model is None:
        return published
    shipped = find_shipped(model)
    if shipped is None:
        raise ConfigError(f"model is {model!r}; expected tiny-flux3-action, or none")
    raw = read_json(shipped, model)
    raw["package"] |= {name: published["package"][name] for name in OF_VARIANT}
    return raw


def write_variant(
    directory: Path, variant: str, *, model: str | None, draw_on: torch.device
) -> None:
    """Write one variant; ``load_policy(directory, variant=variant)`` reads it.

    ``base`` is the root of the package, the others lie below ``variants/`` and share its video VAE
    and text encoder. About 22 GB of the published sizes in bf16.
    """
    write_random_package(
        directory, variant_config(variant, model), variant=variant, draw_on=draw_on
    )


def load_variant(
    variant: str,
    device: torch.device,
    model: str | None,
    *,
    text_device: torch.device | None = None,
) -> Loaded:
    """A variant's model, weights drawn on the device; bf16, but the tiny one on the CPU."""
    is_float32 = model is not None and device.type == "cpu" and not variant.endswith("-fp8r")
    return load_seeded(
        variant_config(variant, model),
        variant,
        device=device,
        dtype=torch.float32 if is_float32 else torch.bfloat16,
        draws_on_device=True,
        text_device=text_device,
    )
