"""A tiny encoder whose warm-up is cheap, and pictures of few patches."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from ostinato.cli.config import EncoderSettings, Settings, resolve_settings

MODEL = "tiny-qwen3-vl"
SMALL = {"min_pixels": 1024}
"""Options that leave small pictures small."""
CHEAP = EncoderSettings(top_patches=256, ladder_ratio=4.0)
FLAGS = ["--top-patches", "256", "--ladder-ratio", "4"]


def settings(*, is_recording_on: bool = True, **fields: Any) -> Settings:
    fields = {"environ": {}, "port": 0, "encoder": CHEAP, "device": "cpu", **fields}
    return resolve_settings(is_recording_on=is_recording_on, **fields)


def picture(seed: int, height: int = 96, width: int = 96) -> bytes:
    """A PNG file of seeded noise over a ramp."""
    draw = np.random.default_rng(seed)
    ramp = np.linspace(0, 255, width)[None, :, None]
    pixels = draw.integers(0, 128, (height, width, 3)) + ramp / 2
    target = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(target, format="PNG")
    return target.getvalue()
