"""What one program takes, and with how many warps, by operator and width.

``tile`` answers the best that was measured, or a rule's guess; ``candidates`` is what
``bench/kernels_tune.py`` tries. A tile changes no answer: rows stay whole where a row is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from ostinato.kernels.rowwise import part_row_tile, power_of_two, whole_row_tile


class Tile(NamedTuple):
    """Rows (rope: tokens; flat work: 1), columns (rope: heads; sample: tokens), and warps."""

    rows: int
    columns: int
    warps: int


BEST: dict[tuple[str, int], Tile] = {
    ("add_rms_norm", 256): Tile(8, 256, 1),
    ("fp8_gelu", 4320): Tile(1, 8192, 8),
    ("fp8_modulate", 3072): Tile(1, 4096, 1),
    ("fp8_swiglu", 9216): Tile(1, 16384, 16),
    ("gelu_erf", 4608): Tile(1, 4096, 4),
    ("layer_norm", 256): Tile(8, 256, 1),
    ("layer_norm", 1152): Tile(1, 2048, 1),
    ("modulate", 1024): Tile(1, 1024, 1),
    ("modulate", 3072): Tile(1, 4096, 4),
    ("norm_rope", 72): Tile(1, 16, 2),
    ("norm_rope", 80): Tile(1, 16, 2),
    ("norm_rope", 128): Tile(1, 16, 2),
    ("rms_norm", 1152): Tile(2, 2048, 2),
    ("rope", 72): Tile(2, 16, 4),
    ("sample", 151936): Tile(1, 4096, 16),
    ("swiglu", 3456): Tile(16, 128, 8),
}
"""Best of ``bench/kernels_tune.py`` on an H200 by operator and width, where it is not the rule's
guess (16,384 rows; of two shapes that share a width, what is good for both). Widths of feed-forward
rows are those that ``layers/mlp.py`` widens them to; they were measured at 3,420 and 4,304.
"""

_WHOLE_ROWS = {"layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm", "modulate"}
_FLAT = {"gelu", "gelu_erf"}
_ROPES = {"rope", "norm_rope"}
_FLAT_VALUES_PER_THREAD = 16
_ROPE_VALUES = 2048

_tried: ContextVar[Tile | None] = ContextVar("ostinato_tried_tile", default=None)


@contextmanager
def trying(tile: Tile) -> Iterator[None]:
    """Every kernel that asks inside the ``with`` block takes this tile."""
    token = _tried.set(tile)
    try:
        yield
    finally:
        _tried.reset(token)


def tile(operator: str, width: int, heads: int = 1) -> Tile:
    """The tile for rows of ``width`` columns; rope: of heads of that width, ``heads`` of them."""
    return measured(operator, width) or _guess(operator, width, heads)


def measured(operator: str, width: int) -> Tile | None:
    """The tile that is tried or was the best; ``None`` leaves it to the operator's own rule."""
    return _tried.get() or BEST.get((operator, width))


def _guess(operator: str, width: int, heads: int) -> Tile:
    if operator in _WHOLE_ROWS:
        return Tile(*whole_row_tile(width))
    if operator in _FLAT:
        return Tile(1, _FLAT_VALUES_PER_THREAD * 32 * 4, 4)
    if operator in _ROPES:
        tile_heads = min(16, power_of_two(heads))
        tokens = max(1, _ROPE_VALUES // (tile_heads * power_of_two(width)))
        return Tile(tokens, tile_heads, 4)
    if operator == "sample":
        return Tile(1, 4096, 8)
    if operator == "paged_cache_write":
        return Tile(max(1, 2048 // power_of_two(width)), power_of_two(width), 4)
    return Tile(*part_row_tile(width))


def candidates(operator: str, width: int, heads: int = 1) -> list[Tile]:
    """Tiles worth timing, the guess first."""
    if operator.startswith("fp8_"):
        columns = power_of_two(width)
        return [Tile(1, columns, w) for w in (1, 2, 4, 8, 16) if 256 <= columns // w <= 4096]
    found = [_guess(operator, width, heads)]
    if operator in _WHOLE_ROWS:
        columns = power_of_two(width)
        found += [
            Tile(values // columns, columns, warps)
            for values in (columns, 2 * columns, 2048, 4096)
            for warps in (1, 2, 4, 8)
            if columns <= values <= 4096 and 512 <= values // warps <= 2048
        ]
    elif operator in _FLAT:
        found += [Tile(1, 32 * n * warps, warps) for n in (8, 16, 32) for warps in (4, 8)]
    elif operator in _ROPES:
        most = min(16, power_of_two(heads))
        found += [
            Tile(tokens, tile_heads, warps)
            for tile_heads in {most, max(1, most // 2)}
            for tokens in (1, 2, 4, 8, 16)
            for warps in (2, 4, 8)
            if 512 <= tokens * tile_heads * power_of_two(width) // warps <= 1024
        ]
    elif operator == "sample":
        found += [Tile(1, 256 * n, warps) for n in (4, 8, 16, 32) for warps in (n // 2, n)]
    elif operator == "paged_cache_write":
        found += [Tile(rows, power_of_two(width), w) for rows in (1, 2, 4) for w in (2, 4, 8)]
    else:
        found += [
            Tile(*part_row_tile(width)[:2], 8),
            *(Tile(1, min(4096, power_of_two(width)), warps) for warps in (4, 8)),
            *(Tile(2, min(2048, power_of_two(width)), warps) for warps in (4, 8)),
            *(Tile(values // 256, 256, 4) for values in (1024, 2048, 4096)),
        ]
    return list(dict.fromkeys(found))
