"""One program normalises whole rows in registers and looks its modulation up by segment."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.norm.triton import normalised
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_math import through_pairs


@triton.jit
def segment_of(segments_pointer, row, num_rows, has_segments: tl.constexpr):
    """Row of the modulation table for each row, int64; 0 without segments."""
    if has_segments:
        return tl.load(segments_pointer + row, mask=row < num_rows, other=0).to(tl.int64)
    else:
        return row * 0


@triton.jit
def modulated(x, is_inside, row, column, scale_pointer, shift_pointer, segments_pointer, y_pointer,
              num_rows, eps, scale_stride: tl.constexpr, shift_stride: tl.constexpr,
              width: tl.constexpr, has_segments: tl.constexpr):  # fmt: skip
    """Normalise and modulate whole rows of fp32 ``x``; the last sum is not yet rounded."""
    # Loaded before the sums, which take longer than the way to the memory.
    segment = segment_of(segments_pointer, row, num_rows, has_segments)
    scale = tl.load(scale_pointer + segment * scale_stride + column, mask=is_inside, other=0.0)
    shift = tl.load(shift_pointer + segment * shift_stride + column, mask=is_inside, other=0.0)
    y = normalised(x, is_inside, column, x, x, y_pointer, eps, width, False, False, False)
    normed = through_pairs(y, y_pointer)
    factor = through_pairs(1.0 + scale.to(tl.float32), y_pointer)
    return through_pairs(factor * normed, y_pointer) + shift.to(tl.float32)


@quick
@triton.jit(do_not_specialize=["num_rows"])
def modulate_kernel(
    x_pointer,
    scale_pointer,
    shift_pointer,
    segments_pointer,
    y_pointer,
    num_rows,
    eps,
    x_stride: tl.constexpr,
    scale_stride: tl.constexpr,
    shift_stride: tl.constexpr,
    width: tl.constexpr,
    has_segments: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    x = tl.load(x_pointer + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    y = modulated(x, is_inside, row, column, scale_pointer, shift_pointer, segments_pointer,
                  y_pointer, num_rows, eps, scale_stride, shift_stride, width,
                  has_segments)  # fmt: skip
    tl.store(y_pointer + row * width + column, y, mask=is_inside)


def modulate(x, scale, shift, segments, eps):
    num_rows, width = x.shape
    y = x.new_empty((num_rows, width))
    scale, shift = (t if t.stride(1) == 1 else t.contiguous() for t in (scale, shift))
    tile_rows, tile_columns, warps = tile("modulate", width)
    modulate_kernel[(ceil_div(num_rows, tile_rows),)](
        x,
        scale,
        shift,
        segments.contiguous() if segments is not None else x,
        y,
        num_rows,
        eps,
        x_stride=x.stride(0),
        scale_stride=scale.stride(0),
        shift_stride=shift.stride(0),
        width=width,
        has_segments=segments is not None,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return y
