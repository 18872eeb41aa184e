"""Decoded frames -> patches with tensor operators, so that a GPU can do it. Off by default.

Repeats Pillow's own arithmetic: coefficients rounded to 22 bits, two passes, values rounded to
bytes after each. Sums of such integers are exact in float64 whatever their order, so the bytes
are those of the CPU path wherever the coefficients are. Runs on any torch device.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from .config import PatchConfig
from .pass_order import always_across_first, down_first_rule
from .patches import value_table

_BITS = 22
_SUPPORT = 2.0
_FRAMES_AT_ONCE = 8


def resized_rows(frames: torch.Tensor, size: tuple[int, int], config: PatchConfig) -> torch.Tensor:
    """``(num_patches, row_width)`` float32 on the device of ``frames``.

    ``frames``: ``(num_frames, height, width, 3)`` uint8. ``size``: the height and width to resize
    to, multiples of ``config.factor``. The last frame is repeated up to a whole temporal patch.
    """
    temporal = config.temporal_patch_size
    if missing := -len(frames) % temporal:
        frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    step = max(1, _FRAMES_AT_ONCE // temporal) * temporal
    table = torch.from_numpy(value_table(config)).to(frames.device)
    parts = [_rows(resize(part, size), table, config) for part in torch.split(frames, step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """``(num_frames, 3, *size)`` uint8 of ``(num_frames, height, width, 3)`` uint8, bicubic."""
    height, width = frames.shape[1:3]
    values = frames.permute(0, 3, 1, 2).to(torch.float64)
    rule = down_first_rule() or always_across_first
    if rule((height, width), size):
        values = _across(_down(values, size[0]), size[1])
    else:
        values = _down(_across(values, size[1]), size[0])
    return values.to(torch.uint8)


def _across(values: torch.Tensor, length: int) -> torch.Tensor:
    if values.shape[-1] == length:
        return values
    weights = torch.from_numpy(_weights(values.shape[-1], length)).to(values.device)
    return _to_bytes(values @ weights.T)


def _down(values: torch.Tensor, length: int) -> torch.Tensor:
    if values.shape[-2] == length:
        return values
    weights = torch.from_numpy(_weights(values.shape[-2], length)).to(values.device)
    return _to_bytes(weights @ values)


def _to_bytes(sums: torch.Tensor) -> torch.Tensor:
    """Fixed point to whole numbers from 0 to 255, still float64."""
    return sums.add_(1 << (_BITS - 1)).mul_(2.0**-_BITS).floor_().clamp_(0, 255)


@lru_cache(maxsize=32)
def _weights(old: int, new: int) -> NDArray[np.float64]:
    """``(new, old)``: how much each old line counts for each new one, in units of 2 ** -22."""
    scale = old / new
    stretch = max(scale, 1.0)
    support = _SUPPORT * stretch
    result = np.zeros((new, old))
    for line in range(new):
        center = (line + 0.5) * scale
        first = max(int(center - support + 0.5), 0)
        last = min(int(center + support + 0.5), old)
        places = np.arange(first, last, dtype=np.float64)
        taps = _bicubic((places - center + 0.5) * (1.0 / stretch))
        total = math.fsum(taps)
        taps = taps / total if total else taps
        result[line, first:last] = np.trunc(taps * (1 << _BITS) + np.where(taps < 0, -0.5, 0.5))
    return result


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _rows(frames: torch.Tensor, table: torch.Tensor, config: PatchConfig) -> torch.Tensor:
    """``(num_frames, 3, height, width)`` uint8 -> normalised patch rows, in the towers' order."""
    patch, merge, temporal = config.patch_size, config.merge_size, config.temporal_patch_size
    height, width = frames.shape[-2:]
    time, down, across = len(frames) // temporal, height // config.factor, width // config.factor
    offsets = torch.arange(3, device=frames.device).mul_(256).view(3, 1, 1)
    values = table.view(-1)[frames.long() + offsets]
    values = values.view(time, temporal, 3, down, merge, patch, across, merge, patch)
    return values.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, config.row_width)
