"""Turns the bytes of an image file into an array, or says which rule they break."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ostinato.errors import InputError


def decode_image(content: bytes, *, max_pixels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """RGB, ``(height, width, 3)``, ``uint8``. The size is checked before anything is decoded."""
    from PIL import Image

    if not content:
        raise InputError("the body is empty; it must be an image file")
    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise InputError(
                    f"the image has {width} x {height} pixels, at most {max_pixels} are allowed"
                )
            return np.asarray(image.convert("RGB"))
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the body is not an image that can be read: {error}") from None
