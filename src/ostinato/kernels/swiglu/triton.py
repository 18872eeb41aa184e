"""Elementwise over a tile of rows and columns of the result: two reads, one write."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_activations import activated
from ostinato.kernels.triton_math import through_pairs


@triton.jit
def gated(packed_row, bias_pointer, column, is_inside, width: tl.constexpr,
          activation: tl.constexpr, has_bias: tl.constexpr, y_pointer):  # fmt: skip
    """``activation(gate) * value`` in fp32, not yet rounded."""
    gate = tl.load(packed_row + column, mask=is_inside, other=0.0).to(tl.float32)
    value = tl.load(packed_row + width + column, mask=is_inside, other=0.0).to(tl.float32)
    if has_bias:
        is_column = column < width
        gate_bias = tl.load(bias_pointer + column, mask=is_column, other=0.0)
        value_bias = tl.load(bias_pointer + width + column, mask=is_column, other=0.0)
        gate = through_pairs(gate + gate_bias.to(tl.float32), y_pointer)
        value = through_pairs(value + value_bias.to(tl.float32), y_pointer)
    return through_pairs(activated(gate, y_pointer, activation), y_pointer) * value


@quick
@triton.jit(do_not_specialize=["num_rows"])
def swiglu_kernel(
    packed_pointer,
    bias_pointer,
    y_pointer,
    num_rows,
    packed_stride: tl.constexpr,
    width: tl.constexpr,
    activation: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    packed_row = packed_pointer + row * packed_stride
    y = gated(packed_row, bias_pointer, column, is_inside, width, activation, has_bias, y_pointer)
    tl.store(y_pointer + row * width + column, y, mask=is_inside)


def swiglu(packed, bias, activation):
    num_rows, width = packed.shape[0], packed.shape[1] // 2
    y = packed.new_empty((num_rows, width))
    tile_rows, tile_columns, warps = tile("swiglu", width)
    grid = (ceil_div(num_rows, tile_rows), ceil_div(width, tile_columns))
    swiglu_kernel[grid](
        packed,
        bias if bias is not None else packed,
        y,
        num_rows,
        packed_stride=packed.stride(0),
        width=width,
        activation=activation,
        has_bias=bias is not None,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return y
