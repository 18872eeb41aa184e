"""Elementwise: one read, one write.

Without a bias, rows that lie one after the other are one long row: no lane idles at a row's end,
and with the activation's arithmetic near the memory's speed an idle lane costs time.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div, part_row_tile
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_activations import activated, activated_nearly
from ostinato.kernels.triton_math import rounded_pairs, through


@triton.jit
def _by_name(x, pointer, activation: tl.constexpr, is_close: tl.constexpr):
    if is_close:
        return activated_nearly(x, pointer, activation)
    else:
        return activated(x, pointer, activation)


@quick
@triton.jit(do_not_specialize=["num_rows"])
def gelu_kernel(
    x_pointer,
    bias_pointer,
    y_pointer,
    num_rows,
    x_stride: tl.constexpr,
    width: tl.constexpr,
    activation: tl.constexpr,
    has_bias: tl.constexpr,
    is_flat: tl.constexpr,
    is_close: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    if is_flat:
        # (A product with a constant: the compiler knows what the end is a multiple of.)
        end = num_rows.to(tl.int64) * width
        at = tl.program_id(0).to(tl.int64) * tile_columns + tl.arange(0, tile_columns)
        x = tl.load(x_pointer + at, mask=at < end, other=0.0).to(tl.float32)
        y = _by_name(x, y_pointer, activation, is_close)
        tl.store(y_pointer + at, rounded_pairs(y, y_pointer), mask=at < end)
    else:
        row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
        column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)[None, :]
        is_inside = (row < num_rows) & (column < width)
        x = tl.load(x_pointer + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
        if has_bias:
            bias = tl.load(bias_pointer + column, mask=column < width, other=0.0).to(tl.float32)
            x = through(x + bias, y_pointer)
        y = rounded_pairs(_by_name(x, y_pointer, activation, is_close), y_pointer)
        tl.store(y_pointer + row * width + column, y, mask=is_inside)


def gelu(x, bias, activation):
    """Bit-exact, but for the last places of erf."""
    return _launch("gelu", x, bias, activation)


def gelu_erf(x, bias, activation):
    """Close: a shorter erf."""
    return _launch("gelu_erf", x, bias, activation)


def _launch(name, x, bias, activation):
    num_rows, width = x.shape
    y = x.new_empty((num_rows, width))
    is_flat = bias is None and x.is_contiguous()
    if is_flat:
        tile_rows, tile_columns, warps = tile(name, width)
        grid = (ceil_div(num_rows * width, tile_columns), 1)
    else:
        tile_rows, tile_columns, warps = part_row_tile(width)
        grid = (ceil_div(num_rows, tile_rows), ceil_div(width, tile_columns))
    gelu_kernel[grid](
        x,
        bias if bias is not None else x,
        y,
        num_rows,
        x_stride=x.stride(0),
        width=width,
        activation=activation,
        has_bias=bias is not None,
        is_flat=is_flat,
        is_close=name == "gelu_erf",
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return y
