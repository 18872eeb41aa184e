"""Who computes a product: the library, at once or in parts, its epilogue, or a Triton tiling.

A library gives a product of tens of rows few tiles, so that most of the device idles; splitting the
inner dimension fills it. Names of variants are all there is to a choice, so they travel as an
operator's argument and its gate proves each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

LIBRARY = "library"
EPILOGUE = "epilogue"
"""cuBLASLt applies bias and tanh-GELU to the sums before it rounds them."""

PARTS = (2, 3)
"""Parts of the inner dimension that the library multiplies as a batch, where a sum follows anyway:
it gives each part's product as many tiles as it would give the whole."""

MAX_PART_ROWS = 1024
_MIN_PART = 384

MAX_TRITON_ROWS = 512
"""Above these the library fills the device and is faster than any tiling here."""

_ROW_CLASSES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
TILES = ((16, 64, 4), (64, 64, 4), (64, 128, 4))
"""(rows, columns, warps) of a program: few, since each is compiled and timed at a first start."""

STAGES = 4
"""Loads in flight: what 99 KiB of shared memory hold, which the smaller cards have."""

INNER = 64
_MIN_INNER_PER_SPLIT = 4 * INNER
_ALIGNMENT = 8
"""Elements: 16 bytes of a two-byte dtype, which vector loads need."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """One Triton variant. ``splits`` parts of the inner dimension are summed afterwards."""

    rows: int
    columns: int
    warps: int
    splits: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}x{self.splits}"


@cache
def parse(name: str) -> Tiling:
    """The tiling of a variant's name; ``ValueError`` for another name."""
    rows, columns, splits = (int(part) for part in name.split("x"))
    warps = next((w for r, c, w in TILES if (r, c) == (rows, columns)), None)
    if warps is None or splits < 1:
        raise ValueError(f"no tiling is named {name!r}")
    return Tiling(rows, columns, warps, splits)


def num_parts(name: str) -> int:
    """Of a variant that the library computes in parts; 0 for any other name."""
    library, _, parts = name.partition("/")
    return int(parts) if library == LIBRARY and parts else 0


def row_class(num_rows: int) -> int:
    """Rows up to this number share a choice."""
    for top in _ROW_CLASSES:
        if num_rows <= top:
            return top
    return 2 * _ROW_CLASSES[-1]


def candidates(
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    dtype: torch.dtype,
    *,
    num_processors: int,
    has_epilogue: bool,
    is_summed: bool,
) -> list[str]:
    """Names worth timing for this size, the library first.

    A tiling is worth timing where it makes no more than about two waves of programs, with as many
    splits as one or two waves ask for. ``is_summed``: a kernel that can add parts follows. The
    epilogue activates sums that are not rounded: where fp16
    overflows, the chain answers GELU(-inf), which is NaN, and the epilogue -0.0, so fp16 has none.
    """
    is_offered = has_epilogue and dtype is not torch.float16
    names = [LIBRARY, EPILOGUE] if is_offered else [LIBRARY]
    if dtype not in (torch.bfloat16, torch.float16):
        return names
    if is_summed and num_rows <= MAX_PART_ROWS:
        names += [
            f"{LIBRARY}/{parts}"
            for parts in PARTS
            if num_inputs % (parts * _ALIGNMENT) == 0 and num_inputs // parts >= _MIN_PART
        ]
    if num_rows > MAX_TRITON_ROWS:
        return names
    if num_inputs % _ALIGNMENT or num_inputs < INNER:
        return names
    rows = row_class(num_rows)
    for tile_rows, tile_columns, warps in TILES:
        if tile_rows > max(16, rows) or rows > 8 * tile_rows:
            continue
        tiles = -(-rows // tile_rows) * -(-num_outputs // tile_columns)
        most = max(1, num_inputs // _MIN_INNER_PER_SPLIT)
        wanted = {1, *(min(most, max(1, waves * num_processors // tiles)) for waves in (1, 2))}
        names += [
            Tiling(tile_rows, tile_columns, warps, splits).name
            for splits in sorted(wanted)
            if tiles * splits <= 4 * num_processors and tiles * splits * 4 >= num_processors
        ]
    return names
