"""Images made small on the robot, before they cross the network."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def resize_with_pad(image: np.ndarray[Any, Any], hw: tuple[int, int]) -> np.ndarray[Any, Any]:
    """(H, W, 3) uint8 to ``hw``: bilinear to fit, centred on zeros, as openpi does.

    Raises ``ValueError`` for anything but three channels of bytes.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"image is {image.dtype} {image.shape}; expected uint8 (H, W, 3)")
    if image.shape[:2] == tuple(hw):
        return image
    height, width = hw
    ratio = max(image.shape[1] / width, image.shape[0] / height)
    fit = max(1, int(image.shape[0] / ratio)), max(1, int(image.shape[1] / ratio))
    resized = Image.fromarray(image).resize((fit[1], fit[0]), Image.Resampling.BILINEAR)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - fit[0]) // 2, (width - fit[1]) // 2
    canvas[top : top + fit[0], left : left + fit[1]] = np.asarray(resized)
    return canvas


def jpeg(image: np.ndarray[Any, Any], hw: tuple[int, int], quality: int = 90) -> bytes:
    """``resize_with_pad``, then a JPEG file: goes into the observation instead of the array."""
    target = io.BytesIO()
    Image.fromarray(resize_with_pad(image, hw)).save(target, "JPEG", quality=quality)
    return target.getvalue()
