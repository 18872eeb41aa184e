"""One program takes a tile of 8x8 cells of one head; the keys of all their windows are its tile.

Windows of neighbouring cells overlap, so the 64 windows of 25 keys span at most 12x12 keys; they
are visited a few rows at a time and each query masks what lies outside of its own window.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div, power_of_two

_LOG2_E = 1.4426950408889634
_TILE = 8


@triton.jit
def _start(position, length: tl.constexpr, window: tl.constexpr):
    return tl.minimum(tl.maximum(position - window // 2, 0), length - window)


@quick
@triton.jit
def neighbourhood_kernel(
    q_pointer,
    k_pointer,
    v_pointer,
    out_pointer,
    scale_log2,
    q_frame: tl.constexpr,
    q_row: tl.constexpr,
    q_cell: tl.constexpr,
    k_frame: tl.constexpr,
    k_row: tl.constexpr,
    k_cell: tl.constexpr,
    v_frame: tl.constexpr,
    v_row: tl.constexpr,
    v_cell: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    columns: tl.constexpr,
    window_y: tl.constexpr,
    window_x: tl.constexpr,
    tile: tl.constexpr,
    span: tl.constexpr,
    key_rows: tl.constexpr,
    precision: tl.constexpr,
):
    tiles_x: tl.constexpr = (width + tile - 1) // tile
    first_y = tl.program_id(0) // tiles_x * tile
    first_x = tl.program_id(0) % tiles_x * tile
    head = tl.program_id(1)
    frame = tl.program_id(2).to(tl.int64)
    cell = tl.arange(0, tile * tile)
    y, x = first_y + cell // tile, first_x + cell % tile
    channel = tl.arange(0, columns)[None, :]
    is_channel = channel < head_dim
    is_value = ((y < height) & (x < width))[:, None] & is_channel
    q_at = frame * q_frame + y[:, None] * q_row + x[:, None] * q_cell + head * head_dim
    q = tl.load(q_pointer + q_at + channel, mask=is_value, other=0.0)
    own_y, own_x = _start(y, height, window_y)[:, None], _start(x, width, window_x)[:, None]
    begin_y, begin_x = _start(first_y, height, window_y), _start(first_x, width, window_x)
    end_y = _start(tl.minimum(first_y + tile, height) - 1, height, window_y) + window_y
    largest = tl.full((tile * tile,), float("-inf"), tl.float32)
    total = tl.zeros((tile * tile,), tl.float32)
    acc = tl.zeros((tile * tile, columns), tl.float32)
    lane = tl.arange(0, key_rows * span)
    for key_begin in range(begin_y, end_y, key_rows):
        key_y, key_x = key_begin + lane // span, begin_x + lane % span
        is_key = (key_y < height) & (key_x < width)
        mask = is_key[:, None] & is_channel
        k_at = frame * k_frame + key_y[:, None] * k_row + key_x[:, None] * k_cell + head * head_dim
        k = tl.load(k_pointer + k_at + channel, mask=mask, other=0.0)
        v_at = frame * v_frame + key_y[:, None] * v_row + key_x[:, None] * v_cell + head * head_dim
        v = tl.load(v_pointer + v_at + channel, mask=mask, other=0.0)
        down, right = key_y[None, :] - own_y, key_x[None, :] - own_x
        is_near = (down >= 0) & (down < window_y) & (right >= 0) & (right < window_x)
        scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale_log2
        scores = tl.where(is_near & is_key[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        safe = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(largest - safe)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(v.dtype), v, input_precision=precision)
        largest = new_largest
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_cell = (frame * height + y[:, None]) * width + x[:, None]
    tl.store(out_pointer + (out_cell * heads + head) * head_dim + channel, acc, mask=is_value)


def neighbourhood_attention(q, k, v, window, scale):
    frames, height, width, heads, head_dim = q.shape
    q, k, v = (x if x.stride()[3:] == (head_dim, 1) else x.contiguous() for x in (q, k, v))
    out = q.new_empty(q.shape)
    window_y, window_x = min(window, height), min(window, width)
    span = power_of_two(_TILE + window_x - 1)
    is_wide = q.dtype == torch.float32
    tiles = ceil_div(height, _TILE) * ceil_div(width, _TILE)
    strides = {
        f"{name}_{axis}": x.stride(i)
        for name, x in (("q", q), ("k", k), ("v", v))
        for i, axis in enumerate(("frame", "row", "cell"))
    }
    neighbourhood_kernel[(tiles, heads, frames)](
        q,
        k,
        v,
        out,
        scale * _LOG2_E,
        **strides,
        height=height,
        width=width,
        heads=heads,
        head_dim=head_dim,
        columns=max(16, power_of_two(head_dim)),
        window_y=window_y,
        window_x=window_x,
        tile=_TILE,
        span=span,
        key_rows=max(1, (32 if is_wide else 64) // span),
        precision="ieee" if is_wide else "tf32",
        num_warps=4,
        num_stages=1 if is_wide else 2,
        enable_fp_fusion=True,
    )
    return out
