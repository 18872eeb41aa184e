"""Pictures made on the spot."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth colours with sharp edges and noise: every part of a resize rule shows."""
    random = np.random.default_rng(seed)
    down, across = np.mgrid[0:height, 0:width]
    waves = [np.sin(down / (3 + 5 * c)) + np.cos(across / (4 + 3 * c)) for c in range(3)]
    pixels = np.stack(waves, -1) * 60 + 128 + random.normal(0, 20, (height, width, 3))
    pixels[height // 3 : height // 2] = 255
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    """``image`` as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()
