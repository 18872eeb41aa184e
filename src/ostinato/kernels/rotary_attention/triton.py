"""Attention within short segments of a packed projection, q and k rotated where they are loaded.

One program takes a tile of rows of one segment and one or more heads, and all keys at once; while
it computes a head the next one is on its way, and the tables are loaded once. A head is loaded as
the two halves whose channels form pairs; scores are the sum of both halves' products.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.card import capability_of
from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import power_of_two
from ostinato.kernels.segment_attention.tiles import SHORT, head_parts, stages_for
from ostinato.kernels.segment_attention.triton import (
    load_rows,
    log2_scale,
    place,
    programs,
    store_rows,
    weigh_values,
)

TILE_ROWS = 64


@triton.jit
def _load_rotated(
    base, row, cos, sin, stride: tl.constexpr, half: tl.constexpr, columns: tl.constexpr, length
):
    """Both halves of the rows, (rows, columns) each, rotated in fp32 and rounded once."""
    first = load_rows(base, row, stride, 0, columns, half, length, True)
    second = load_rows(base + half, row, stride, 0, columns, half, length, True)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    turned = wide_first * cos - wide_second * sin
    partner = wide_second * cos + wide_first * sin
    return turned.to(first.dtype), partner.to(first.dtype)


@quick
@triton.jit(do_not_specialize=["num_segments", "tiles_per_segment"])
def rotary_attention_kernel(
    qkv_pointer,
    cos_pointer,
    sin_pointer,
    out_pointer,
    offsets_pointer,
    num_segments,
    tiles_per_segment,
    scale_log2,
    qkv_row: tl.constexpr,
    table_row: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    columns: tl.constexpr,
    main: tl.constexpr,
    rest: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    heads_per_program: tl.constexpr,
    stages: tl.constexpr,
    is_even: tl.constexpr,
    block: tl.constexpr,
    precision: tl.constexpr,
):
    groups: tl.constexpr = heads // heads_per_program
    group, first, start, length = place(
        offsets_pointer, num_segments, tiles_per_segment, groups, tile_rows, True, is_even, block
    )
    if first < length:
        width: tl.constexpr = heads * head_dim
        half: tl.constexpr = head_dim // 2
        cos_base = cos_pointer + start * table_row
        sin_base = sin_pointer + start * table_row
        row = first + tl.arange(0, tile_rows)
        key = tl.arange(0, tile_keys)
        cos = load_rows(cos_base, row, table_row, 0, columns, half, length, True)
        sin = load_rows(sin_base, row, table_row, 0, columns, half, length, True)
        key_cos, key_sin = cos, sin
        if tile_rows < tile_keys:  # else a segment is one tile, whose rows are its keys
            key_cos = load_rows(cos_base, key, table_row, 0, columns, half, length, True)
            key_sin = load_rows(sin_base, key, table_row, 0, columns, half, length, True)
        for member in tl.range(0, heads_per_program, num_stages=stages):
            head = group * heads_per_program + member
            q_base = qkv_pointer + start * qkv_row + head * head_dim
            q_first, q_second = _load_rotated(q_base, row, cos, sin, qkv_row, half, columns, length)
            k_first, k_second = _load_rotated(
                q_base + width, key, key_cos, key_sin, qkv_row, half, columns, length
            )
            v_base = q_base + 2 * width
            v = load_rows(v_base, key, qkv_row, 0, main, head_dim, length, True)
            v_rest = v
            if rest > 0:
                v_rest = load_rows(v_base, key, qkv_row, main, rest, head_dim, length, True)
            scores = tl.dot(q_first, tl.trans(k_first), input_precision=precision)
            scores = tl.dot(q_second, tl.trans(k_second), scores, input_precision=precision)
            acc = tl.zeros((tile_rows, main), tl.float32)
            acc_rest = tl.zeros((tile_rows, rest if rest > 0 else 16), tl.float32)
            largest = tl.full((tile_rows,), float("-inf"), tl.float32)
            total = tl.zeros((tile_rows,), tl.float32)
            acc, acc_rest, largest, total = weigh_values(
                acc, acc_rest, largest, total, scores, v, v_rest, key, length, scale_log2, rest,
                True, precision,
            )  # fmt: skip
            out_base = out_pointer + start * width + head * head_dim
            store_rows(out_base, row, width, acc, acc_rest, total, length, head_dim, main, rest)


def rotary_attention(qkv, cos, sin, offsets, max_length, heads, scale, heads_per_program=1):
    """Arguments as the operator's: ``scale`` not negative, ``max_length`` at most ``LONGEST``;
    ``heads_per_program`` divides ``heads``.
    """
    num_rows, packed = qkv.shape
    head_dim = packed // (3 * heads)
    out = qkv.new_empty((num_rows, heads * head_dim))
    num_segments = offsets.shape[0] - 1
    shared = programs(num_rows, num_segments, min(max_length, num_rows), TILE_ROWS)
    main, rest = head_parts(head_dim)
    is_pipelined = heads_per_program > 1 and qkv.dtype.itemsize == 2
    stages = stages_for(capability_of(qkv.device)) if is_pipelined else 1
    rotary_attention_kernel[(shared.num_tiles * (heads // heads_per_program),)](
        qkv,
        cos,
        sin,
        out,
        offsets,
        num_segments,
        shared.per_segment,
        log2_scale(scale),
        qkv_row=qkv.stride(0),
        table_row=cos.stride(0),
        heads=heads,
        head_dim=head_dim,
        columns=max(16, power_of_two(head_dim // 2)),
        main=main,
        rest=rest,
        tile_rows=TILE_ROWS,
        tile_keys=next(n for n in SHORT if max_length <= n),
        heads_per_program=heads_per_program,
        stages=stages,
        is_even=shared.is_even,
        block=shared.block,
        precision="ieee" if qkv.dtype.itemsize > 2 else "tf32",
        num_warps=4,
        num_stages=stages,
        enable_fp_fusion=True,
    )
    return out
