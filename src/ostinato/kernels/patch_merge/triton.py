"""A copy: one program writes a tile of merged patches and channels."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div, part_row_tile


@quick
@triton.jit(do_not_specialize=["num_rows"])
def patch_merge_kernel(
    x_pointer,
    y_pointer,
    num_rows,
    frame_stride: tl.constexpr,
    row_stride: tl.constexpr,
    column_stride: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    merged_height: tl.constexpr = (height + 1) // 2
    merged_width: tl.constexpr = (width + 1) // 2
    patch = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    channel = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)[None, :]
    neighbour = channel // channels
    frame = patch // (merged_height * merged_width)
    y = (patch // merged_width) % merged_height * 2 + neighbour // 2
    x = patch % merged_width * 2 + neighbour % 2
    is_inside = (patch < num_rows) & (channel < 4 * channels)
    source = x_pointer + frame * frame_stride + y * row_stride + x * column_stride
    values = tl.load(
        source + channel % channels, mask=is_inside & (y < height) & (x < width), other=0
    )
    tl.store(y_pointer + patch * (4 * channels) + channel, values, mask=is_inside)


def patch_merge(x):
    x = x if x.stride(3) == 1 else x.contiguous()
    frames, height, width, channels = x.shape
    y = x.new_empty((frames, (height + 1) // 2, (width + 1) // 2, 4 * channels))
    num_rows = y.shape[0] * y.shape[1] * y.shape[2]
    tile_rows, tile_columns, warps = part_row_tile(4 * channels)
    grid = (ceil_div(num_rows, tile_rows), ceil_div(4 * channels, tile_columns))
    patch_merge_kernel[grid](
        x,
        y,
        num_rows,
        frame_stride=x.stride(0),
        row_stride=x.stride(1),
        column_stride=x.stride(2),
        height=height,
        width=width,
        channels=channels,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return y
