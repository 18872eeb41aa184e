"""Arrays and tensors -> one uint8 RGB array. Says no where the meaning is not certain.

Channels: a side of 3 (colour) or 1 (grey) must stand first or last. Where both ends could be the
channels, the array is refused unless ``channels`` says which. Two dimensions are a grey image.
Values: integers of any width from 0 to 255, or floats from 0 to 1, which become
``floor(255 * value)`` (the rounding of the published processors; every ``k / 255`` gives ``k``).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .refuse import refuse

Channels = Literal["first", "last"]


def to_numpy(source: Any) -> NDArray[Any]:
    """A numpy array of the caller's values; tensors may live anywhere and have any dtype."""
    if isinstance(source, torch.Tensor):
        source = source.detach()
        if source.layout is not torch.strided or source.is_quantized:
            raise refuse("array-dtype", f"a dense tensor is needed, got {source.layout}")
        if source.dtype is torch.bfloat16:
            source = source.float()
        source = source.cpu().numpy()
    return np.asarray(source)


def to_rgb(array: NDArray[Any], channels: Channels | None = None) -> NDArray[np.uint8]:
    """``(height, width, 3)`` uint8, contiguous, of one image in any accepted form."""
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim != 3:
        raise refuse("array-shape", f"an image has 2 or 3 dimensions, got shape {array.shape}")
    return _rgb(array, channels)


def to_rgb_frames(array: NDArray[Any], channels: Channels | None = None) -> NDArray[np.uint8]:
    """``(frames, height, width, 3)`` uint8, contiguous, of one video in any accepted form."""
    if array.ndim != 4:
        raise refuse("array-shape", f"a video array has 4 dimensions, got shape {array.shape}")
    return _rgb(array, channels)


def _rgb(array: NDArray[Any], channels: Channels | None) -> NDArray[np.uint8]:
    if 0 in array.shape:
        raise refuse("zero-size", f"every side must be at least 1, got shape {array.shape}")
    if _channel_place(array.shape[-3:], channels) == "first":
        array = np.moveaxis(array, -3, -1)
    values = _to_bytes(array)
    if values.shape[-1] == 1:
        values = np.repeat(values, 3, axis=-1)
    return np.ascontiguousarray(values)


def _channel_place(shape: tuple[int, ...], channels: Channels | None) -> Channels:
    first, last = shape[0] in (1, 3), shape[-1] in (1, 3)
    if channels is not None:
        if channels not in ("first", "last"):
            raise refuse("array-channels", f'channels must be "first" or "last", got {channels!r}')
        if not (first if channels == "first" else last):
            raise refuse("array-channels", f"no 1 or 3 channels {channels} in shape {shape}")
        return channels
    if first and last:
        raise refuse(
            "array-channels",
            f'shape {shape} can be read two ways; pass channels="first" or channels="last"',
        )
    if not first and not last:
        raise refuse(
            "array-channels",
            f"1 or 3 channels must stand first or last, got shape {shape}",
        )
    return "first" if first else "last"


def _to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if np.issubdtype(array.dtype, np.integer):
        low, high = int(array.min()), int(array.max())
        if low < 0 or high > 255:
            raise refuse(
                "array-range", f"{array.dtype} values must lie in 0..255, got {low}..{high}"
            )
        return array.astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        raise refuse("array-dtype", f"integers or floats are needed, got dtype {array.dtype}")
    low_value, high_value = float(array.min()), float(array.max())
    if not (low_value >= 0.0 and high_value <= 1.0):  # NaN fails every comparison
        raise refuse(
            "array-range",
            f"{array.dtype} values must be finite and lie in 0..1, got {low_value}..{high_value}",
        )
    scaled = (array.astype(np.float64) * 255).astype(np.float32)
    return scaled.astype(np.uint8)
