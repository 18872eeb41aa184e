"""How a program holds a row in registers: two tiles of columns, and warps, by width."""

from __future__ import annotations

from typing import NamedTuple

from ostinato.kernels.rowwise import power_of_two

_PER_WARP = 40 * 32
"""Values of a warp, at most (16 warps hold more). The reductions over a row cost a lane about as
much as ten values, so lanes hold many; with more, registers would leave a multiprocessor too few
warps to load while others compute."""
_MIN_COLUMNS = 64


class RowTiles(NamedTuple):
    """``main + rest`` columns, both powers of two; ``rest`` may be 0."""

    main: int
    rest: int
    num_warps: int


def row_tiles(width: int) -> RowTiles:
    """The tiles for a row of ``width`` values; at most a third of the lanes idle, mostly none."""
    main, rest = _columns(width)
    num_warps = 1
    while num_warps < 16 and main + rest > _PER_WARP * num_warps:
        num_warps *= 2
    return RowTiles(main, rest, num_warps)


def _columns(width: int) -> tuple[int, int]:
    whole = power_of_two(width)
    main = whole // 2
    if width == whole or main < _MIN_COLUMNS:
        return whole, 0
    rest = max(_MIN_COLUMNS, power_of_two(width - main))
    return (main, rest) if rest < main else (whole, 0)
