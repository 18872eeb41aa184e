"""Resized uint8 frames -> normalised float32 patch rows, in the order the towers read them.

Rescaling and normalising is a function of one byte and one channel, so it is a table. Two
neighbouring bytes are looked up at once (a table of 65,536 pairs per channel).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .config import PatchConfig
from .refuse import refuse

GridTHW = tuple[int, int, int]
Values = NDArray[np.float32] | torch.Tensor


@dataclass(frozen=True, eq=False)
class Patches:
    """One image or video, ready for a tower. The values belong to the caller.

    ``values``: float32, ``(t * h * w, 3 * temporal * patch * patch)``, normalised; a numpy array,
    or a tensor where the preprocessor was given a device.
    ``grid_thw``: patches along time, height and width.
    ``timestamps``: seconds, the middle of each temporal patch (videos; empty for images).
    ``seconds_per_grid``: seconds between temporal patches (videos).
    ``decode_ms`` and ``transform_ms``: wall time of the two stages.
    """

    values: Values
    grid_thw: GridTHW
    kind: Literal["image", "video"]
    timestamps: tuple[float, ...] = ()
    seconds_per_grid: float | None = None
    decode_ms: float = 0.0
    transform_ms: float = 0.0

    @property
    def pixel_values(self) -> NDArray[np.float32]:
        """The values on the host; copied (and waited for) only if they are on a device."""
        if isinstance(self.values, torch.Tensor):
            return np.asarray(self.values.cpu().numpy(), np.float32)
        return self.values

    @property
    def tensor(self) -> torch.Tensor:
        """The values as a tensor, where they are; shares their memory."""
        if isinstance(self.values, torch.Tensor):
            return self.values
        return torch.from_numpy(self.values)

    @property
    def num_patches(self) -> int:
        """Rows of ``pixel_values``."""
        return self.grid_thw[0] * self.grid_thw[1] * self.grid_thw[2]


def value_table(config: PatchConfig) -> NDArray[np.float32]:
    """``(3, 256)`` float32: the normalised value of each byte, per channel.

    Rounds where the published processors round: the product in float64, then float32 for the
    difference and the quotient.
    """
    rescaled = (np.arange(256, dtype=np.float64) * config.rescale_factor).astype(np.float32)
    mean = np.asarray(config.image_mean, dtype=np.float32)
    std = np.asarray(config.image_std, dtype=np.float32)
    return np.ascontiguousarray(((rescaled[:, None] - mean) / std).T)


@lru_cache(maxsize=8)
def _pair_tables(config: PatchConfig) -> tuple[NDArray[np.uint64], ...]:
    """Per channel 65,536 entries: two float32 of :func:`value_table`, side by side."""
    pairs = np.arange(65_536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    return tuple(channel[pairs].view(np.uint64).reshape(-1) for channel in value_table(config))


def grid_of(num_frames: int, height: int, width: int, config: PatchConfig) -> GridTHW:
    """Patches along time, height and width; the last frame is repeated up to a whole patch."""
    time = -(-num_frames // config.temporal_patch_size)
    return time, height // config.patch_size, width // config.patch_size


def check_patch_bytes(grid: GridTHW, config: PatchConfig, max_bytes: int) -> None:
    """Refuse a grid whose float32 rows take more than ``max_bytes``."""
    num_bytes = 4 * config.row_width * grid[0] * grid[1] * grid[2]
    if num_bytes > max_bytes:
        raise refuse(
            "max-patch-bytes", f"grid {grid} is {num_bytes} bytes, the limit is {max_bytes}"
        )


def new_rows(grid: GridTHW, config: PatchConfig) -> NDArray[np.float32]:
    """Uninitialised rows for one item, shaped as :func:`write_frame` wants them:

    ``(t, h / merge, w / merge, merge * merge, 3, temporal, patch * patch)`` float32.
    """
    time, height, width = grid
    merge = config.merge_size
    shape = (time, height // merge, width // merge, merge * merge, 3)
    return np.empty((*shape, config.temporal_patch_size, config.patch_size**2), np.float32)


def as_rows(rows: NDArray[np.float32], config: PatchConfig) -> NDArray[np.float32]:
    """The ``(num_patches, row_width)`` view of what :func:`new_rows` made."""
    return rows.reshape(-1, config.row_width)


def write_frame(
    planes: tuple[NDArray[np.uint8], ...],
    rows: NDArray[np.float32],
    slots: slice,
    config: PatchConfig,
) -> None:
    """Write one frame, or a band of whole merged columns of it, into ``rows[t]``.

    ``planes``: red, green and blue, each ``(height, width)`` uint8 and contiguous.
    ``rows``: ``(h / merge, w / merge, merge * merge, 3, temporal, patch * patch)``.
    ``slots``: the temporal places that show this frame.
    """
    patch, merge = config.patch_size, config.merge_size
    tables = _pair_tables(config)
    num_down, num_across = rows.shape[:2]
    for channel, plane in enumerate(planes):
        # One item is `patch` neighbouring bytes: (down, merge, patch, across, merge).
        items = plane.reshape(-1).view(f"V{patch}")
        items = items.reshape(num_down, merge, patch, num_across, merge)
        ordered = np.ascontiguousarray(items.transpose(0, 3, 1, 4, 2)).reshape(-1).view(np.uint8)
        if ordered.nbytes % 2 == 0:
            values = tables[channel].take(ordered.view(np.uint16)).view(np.float32)
        else:
            values = value_table(config)[channel].take(ordered)
        shape = (num_down, num_across, merge * merge, 1, patch * patch)
        rows[:, :, :, channel, slots] = values.reshape(shape)
