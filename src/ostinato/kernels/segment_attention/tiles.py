"""Which tile of rows and keys the own kernel uses: by card, head size, dtype and longest segment.

Plain numbers, chosen on the host from what a recording bakes. Nothing here looks at offsets, so
that two calls with equal shapes and bounds of one class run the same program on every layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

SHORT = (64, 128)
"""Segments up to these lengths are one tile of keys, so that nothing is carried between tiles."""

FEW_PROGRAMS = 256
"""With fewer programs than about two for each multiprocessor of a large card, tiles are smaller."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """``rows`` and ``keys`` of a tile; ``is_single``: no segment has more keys than one tile."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    is_single: bool = False


@cache
def head_parts(head_dim: int) -> tuple[int, int]:
    """Two powers of two (the second may be 0) that cover a head with as little padding as can be.

    A head of 72 or 80 is computed as 64 + 16 channels instead of 128.
    """
    whole = max(16, 1 << (head_dim - 1).bit_length())
    main = max(16, whole // 2)
    rest = max(16, 1 << max(head_dim - main - 1, 0).bit_length())
    return (main, rest) if main + rest < whole else (whole, 0)


@cache
def tiles_for(
    capability: tuple[int, int], *, head_dim: int, dtype: torch.dtype, max_length: int, work: int
) -> Tiles:
    """The tile for a card of compute capability ``capability``; ``work`` is rows times heads."""
    columns = sum(head_parts(head_dim))
    if dtype.itemsize > 2:
        return Tiles(32 if columns <= 128 else 16, 32, 4, 1)
    if max_length <= SHORT[1] and columns <= 128:
        return Tiles(64, SHORT[0] if max_length <= SHORT[0] else SHORT[1], 4, 1, is_single=True)
    has_few = work < 128 * FEW_PROGRAMS
    match _memory_class(capability), columns <= 96, columns <= 128:
        case "large", _, True:  # 128 rows, 8 warps: 194 us instead of 125 for 3136 rows of 16x72
            return Tiles(64, 64, 4, 3)
        case "medium", _, True:  # four warps for 128 rows would spill registers
            return Tiles(64, 64, 4, 3) if has_few else Tiles(128, 64, 8, 3)
        case "small", True, _:
            return Tiles(64, 64, 4, 2)
        case "small", _, True:
            return Tiles(64, 32, 4, 2) if has_few else Tiles(128, 32, 8, 2)
        case _:
            return Tiles(64, 32, 4, 2)


def stages_for(capability: tuple[int, int]) -> int:
    """How many heads of a window a program of several holds or awaits: 43 KiB each."""
    return 2 if _memory_class(capability) == "small" else 3


def _memory_class(capability: tuple[int, int]) -> str:
    """By shared memory of a block: 227 KiB, 163 KiB, or 99 KiB and whatever is unknown."""
    if capability[0] in (9, 10):
        return "large"
    return "medium" if capability in ((8, 0), (8, 7)) else "small"
