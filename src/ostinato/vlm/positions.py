"""M-RoPE positions of a prompt, on the host: three axes, equal for text, a grid for media."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Block(NamedTuple):
    """Consecutive tokens of an image, a video or a frame: ``frames`` x ``rows`` x ``columns``.

    ``interval``: positions between two frames.
    """

    start: int
    frames: int
    rows: int
    columns: int
    interval: int = 1

    @property
    def length(self) -> int:
        return self.frames * self.rows * self.columns


def rope_positions(length: int, blocks: Sequence[Block]) -> npt.NDArray[np.int32]:
    """(3, length): time, row, column of each token.

    ``blocks``: ascending, apart. What follows a block goes on after its longer side, whatever its
    frames took.
    """
    positions = np.empty((3, length), np.int32)
    at = position = 0
    for block in blocks:
        positions[:, at : block.start] = position + np.arange(block.start - at)
        position += block.start - at
        at = block.start + block.length
        grid = np.indices((block.frames, block.rows, block.columns), np.int32).reshape(3, -1)
        grid[0] *= block.interval
        positions[:, block.start : at] = position + grid
        position += max(block.rows, block.columns)
    positions[:, at:] = position + np.arange(length - at)
    return positions
