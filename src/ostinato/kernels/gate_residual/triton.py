"""Elementwise over a tile of rows and columns: two or three reads, one write."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.modulate.triton import segment_of
from ostinato.kernels.rowwise import ceil_div, part_row_tile
from ostinato.kernels.triton_math import through


@quick
@triton.jit(do_not_specialize=["num_rows"])
def gate_residual_kernel(
    x_pointer,
    y_pointer,
    gate_pointer,
    segments_pointer,
    plus_pointer,
    out_pointer,
    num_rows,
    x_stride: tl.constexpr,
    y_stride: tl.constexpr,
    gate_stride: tl.constexpr,
    plus_stride: tl.constexpr,
    width: tl.constexpr,
    has_segments: tl.constexpr,
    has_plus: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    x = tl.load(x_pointer + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    y = tl.load(y_pointer + row * y_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    if has_plus:
        plus = tl.load(plus_pointer + row * plus_stride + column, mask=is_inside, other=0.0)
        y = through(y + plus.to(tl.float32), out_pointer)
    segment = segment_of(segments_pointer, row, num_rows, has_segments)
    gate = tl.load(gate_pointer + segment * gate_stride + column, mask=is_inside, other=0.0)
    total = x + through(gate.to(tl.float32) * y, out_pointer)
    tl.store(out_pointer + row * width + column, total, mask=is_inside)


def gate_residual(x, y, gate, segments, plus):
    num_rows, width = x.shape
    out = x.new_empty((num_rows, width))
    gate = gate if gate.stride(1) == 1 else gate.contiguous()
    tile_rows, tile_columns, warps = part_row_tile(width)
    grid = (ceil_div(num_rows, tile_rows), ceil_div(width, tile_columns))
    gate_residual_kernel[grid](
        x,
        y,
        gate,
        segments.contiguous() if segments is not None else x,
        plus if plus is not None else x,
        out,
        num_rows,
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        gate_stride=gate.stride(0),
        plus_stride=plus.stride(0) if plus is not None else 0,
        width=width,
        has_segments=segments is not None,
        has_plus=plus is not None,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return out
