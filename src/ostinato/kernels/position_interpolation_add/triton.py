"""Elementwise over a tile of rows and columns; the table is small and stays in the L2 cache."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_math import through


@triton.jit
def _corner(table_pointer, indices_pointer, weights_pointer, row, column, corner: tl.constexpr,
            num_rows, width: tl.constexpr, out_pointer, rounds_each: tl.constexpr):  # fmt: skip
    is_row = row < num_rows
    index = tl.load(indices_pointer + row * 4 + corner, mask=is_row, other=0).to(tl.int64)
    weight = tl.load(weights_pointer + row * 4 + corner, mask=is_row, other=0.0).to(tl.float32)
    values = tl.load(
        table_pointer + index * width + column, mask=is_row & (column < width), other=0.0
    )
    product = values.to(tl.float32) * weight
    return through(product, out_pointer) if rounds_each else product


@quick
@triton.jit(do_not_specialize=["num_rows"])
def position_interpolation_add_kernel(
    x_pointer,
    table_pointer,
    indices_pointer,
    weights_pointer,
    out_pointer,
    num_rows,
    x_stride: tl.constexpr,
    width: tl.constexpr,
    rounds_each: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    total = _corner(table_pointer, indices_pointer, weights_pointer, row, column, 0, num_rows,
                    width, out_pointer, rounds_each)  # fmt: skip
    for corner in tl.static_range(1, 4):
        total += _corner(table_pointer, indices_pointer, weights_pointer, row, column, corner,
                         num_rows, width, out_pointer, rounds_each)  # fmt: skip
        if rounds_each:
            total = through(total, out_pointer)
    x = tl.load(x_pointer + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    y = x + through(total, out_pointer)
    tl.store(out_pointer + row * width + column, y, mask=is_inside)


def position_interpolation_add(x, table, indices, weights):
    num_rows, width = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    out = x.new_empty((num_rows, width))
    tile_rows, tile_columns, warps = tile("position_interpolation_add", width)
    grid = (ceil_div(num_rows, tile_rows), ceil_div(width, tile_columns))
    position_interpolation_add_kernel[grid](
        x,
        table.contiguous(),
        indices.contiguous(),
        weights.contiguous(),
        out,
        num_rows,
        x_stride=x.stride(0),
        width=width,
        rounds_each=torch.promote_types(table.dtype, weights.dtype) != torch.float32,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return out
