"""Flash attention within segments: one program takes a tile of rows of one segment and one head.

The tile map needs no memory. Either every segment owns equally many programs, or segment s owns
those from ``offsets[s] // tile + s`` on: never fewer than it has tiles, one too many at most, and
ascending in s, so that a program counts the segments that begin before it and knows its own. What
has no rows ends at once. A head of 72 or 80 channels is computed in two parts, 64 and 16.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from ostinato.kernels.card import capability_of
from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.segment_attention.tiles import head_parts, tiles_for

_LOG2_E = 1.4426950408889634
_SMALLEST_SCALE = 1e-30
"""A scale of 0 would make NaN of the masked scores; with this one all weights are equal."""


@triton.jit
def load_rows(
    base,
    row,
    stride: tl.constexpr,
    first: tl.constexpr,
    columns: tl.constexpr,
    head_dim: tl.constexpr,
    length,
    is_partial: tl.constexpr,
):
    """Channels ``first`` to ``first + columns`` of the rows; zero outside of head and segment."""
    channel = first + tl.arange(0, columns)[None, :]
    at = base + row[:, None] * stride + channel
    if first + columns <= head_dim:
        mask = (row < length)[:, None] if is_partial else None
        values = tl.load(at, mask=mask, other=0.0 if is_partial else None)
    elif is_partial:
        values = tl.load(at, mask=(row < length)[:, None] & (channel < head_dim), other=0.0)
    else:
        values = tl.load(at, mask=channel < head_dim, other=0.0)
    return values


@triton.jit
def weigh_values(
    acc,
    acc_rest,
    largest,
    total,
    scores,
    v,
    v_rest,
    key,
    length,
    scale_log2,
    rest: tl.constexpr,
    is_partial: tl.constexpr,
    precision: tl.constexpr,
):
    """One more tile of keys. ``largest`` is that of the scores before they are scaled."""
    if is_partial:
        scores = tl.where((key < length)[None, :], scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    weights = tl.exp2(scores * scale_log2 - (new_largest * scale_log2)[:, None])
    shrink = tl.exp2((largest - new_largest) * scale_log2)
    total = total * shrink + tl.sum(weights, axis=1)
    rounded = weights.to(v.dtype)
    acc = tl.dot(rounded, v, acc * shrink[:, None], input_precision=precision)
    if rest > 0:
        acc_rest = tl.dot(rounded, v_rest, acc_rest * shrink[:, None], input_precision=precision)
    return acc, acc_rest, new_largest, total


@triton.jit
def _attend_keys(
    acc,
    acc_rest,
    largest,
    total,
    q,
    q_rest,
    k_base,
    v_base,
    first_key,
    length,
    scale_log2,
    k_row: tl.constexpr,
    v_row: tl.constexpr,
    head_dim: tl.constexpr,
    main: tl.constexpr,
    rest: tl.constexpr,
    tile_keys: tl.constexpr,
    is_partial: tl.constexpr,
    precision: tl.constexpr,
):
    key = first_key + tl.arange(0, tile_keys)
    k = load_rows(k_base, key, k_row, 0, main, head_dim, length, is_partial)
    v = load_rows(v_base, key, v_row, 0, main, head_dim, length, is_partial)
    v_rest = v
    if rest > 0:
        k_rest = load_rows(k_base, key, k_row, main, rest, head_dim, length, is_partial)
        v_rest = load_rows(v_base, key, v_row, main, rest, head_dim, length, is_partial)
    scores = tl.dot(q, tl.trans(k), input_precision=precision)
    if rest > 0:
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision=precision)
    return weigh_values(
        acc, acc_rest, largest, total, scores, v, v_rest, key, length, scale_log2, rest,
        is_partial, precision,
    )  # fmt: skip


@triton.jit
def _segment_of(tile, offsets_pointer, num_segments, tile_rows: tl.constexpr, block: tl.constexpr):
    """How many segments own programs up to ``tile``, less one; all boundaries are read at once."""
    count = 0
    for begin in range(0, num_segments, block):
        index = begin + tl.arange(0, block)
        start = tl.load(offsets_pointer + index, mask=index < num_segments, other=2147480000)
        count += tl.sum((start // tile_rows + index <= tile).to(tl.int32), axis=0)
    return count - 1


@triton.jit
def place(
    offsets_pointer,
    num_segments,
    tiles_per_segment,
    heads: tl.constexpr,
    tile_rows: tl.constexpr,
    is_single: tl.constexpr,
    is_even: tl.constexpr,
    block: tl.constexpr,
):
    """``(head, first row of the tile in its segment, where the segment begins, its length)``.

    ``is_even``: every segment owns ``tiles_per_segment`` programs; else they are counted.
    """
    if is_single:  # neighbours share rows: the heads of a window lie side by side in memory
        head = tl.program_id(0) % heads
        tile = tl.program_id(0) // heads
    else:  # neighbours share keys
        num_tiles = tl.num_programs(0) // heads
        head = tl.program_id(0) // num_tiles
        tile = tl.program_id(0) % num_tiles
    if is_even:
        segment = tile // tiles_per_segment
        first = tile % tiles_per_segment * tile_rows
        begin = tl.load(offsets_pointer + segment)
    else:
        segment = _segment_of(tile, offsets_pointer, num_segments, tile_rows, block)
        begin = tl.load(offsets_pointer + segment)
        first = (tile - segment - begin // tile_rows) * tile_rows
    length = tl.load(offsets_pointer + segment + 1) - begin
    return head, first, begin.to(tl.int64), length


@triton.jit
def store_rows(
    base,
    row,
    stride: tl.constexpr,
    acc,
    acc_rest,
    total,
    length,
    head_dim: tl.constexpr,
    main: tl.constexpr,
    rest: tl.constexpr,
):
    inverse = (1.0 / total)[:, None]
    is_row = (row < length)[:, None]
    channel = tl.arange(0, main)[None, :]
    at = base + row[:, None] * stride
    tl.store(at + channel, acc * inverse, mask=is_row & (channel < head_dim))
    if rest > 0:
        channel = main + tl.arange(0, rest)[None, :]
        tl.store(at + channel, acc_rest * inverse, mask=is_row & (channel < head_dim))


@quick
@triton.jit(do_not_specialize=["num_segments", "tiles_per_segment"])
def segment_attention_kernel(
    q_pointer,
    k_pointer,
    v_pointer,
    out_pointer,
    offsets_pointer,
    num_segments,
    tiles_per_segment,
    scale_log2,
    q_row: tl.constexpr,
    k_row: tl.constexpr,
    v_row: tl.constexpr,
    out_row: tl.constexpr,
    q_head: tl.constexpr,
    k_head: tl.constexpr,
    v_head: tl.constexpr,
    out_head: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    main: tl.constexpr,
    rest: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    is_single: tl.constexpr,
    is_even: tl.constexpr,
    block: tl.constexpr,
    precision: tl.constexpr,
):
    head, first, start, length = place(
        offsets_pointer, num_segments, tiles_per_segment, heads, tile_rows, is_single, is_even,
        block,
    )  # fmt: skip
    if first < length:
        k_base = k_pointer + start * k_row + head * k_head
        v_base = v_pointer + start * v_row + head * v_head
        q_base = q_pointer + start * q_row + head * q_head
        row = first + tl.arange(0, tile_rows)
        q = load_rows(q_base, row, q_row, 0, main, head_dim, length, True)
        q_rest = q
        if rest > 0:
            q_rest = load_rows(q_base, row, q_row, main, rest, head_dim, length, True)
        acc = tl.zeros((tile_rows, main), tl.float32)
        acc_rest = tl.zeros((tile_rows, rest if rest > 0 else 16), tl.float32)
        largest = tl.full((tile_rows,), float("-inf"), tl.float32)
        total = tl.zeros((tile_rows,), tl.float32)
        whole = 0
        if not is_single:
            whole = length // tile_keys * tile_keys
            for first_key in range(0, whole, tile_keys):
                acc, acc_rest, largest, total = _attend_keys(
                    acc, acc_rest, largest, total, q, q_rest, k_base, v_base, first_key, length,
                    scale_log2, k_row, v_row, head_dim, main, rest, tile_keys, False, precision,
                )  # fmt: skip
        if whole < length:
            acc, acc_rest, largest, total = _attend_keys(
                acc, acc_rest, largest, total, q, q_rest, k_base, v_base, whole, length,
                scale_log2, k_row, v_row, head_dim, main, rest, tile_keys, True, precision,
            )  # fmt: skip
        out_base = out_pointer + start * out_row + head * out_head
        store_rows(out_base, row, out_row, acc, acc_rest, total, length, head_dim, main, rest)


class Programs(NamedTuple):
    """How many programs a head has, and how they find their rows: see ``place``."""

    num_tiles: int
    per_segment: int
    is_even: bool
    block: int


def programs(num_rows, num_segments, max_length, tile_rows):
    """``max_length`` at most ``num_rows``."""
    per_segment = ceil_div(max(max_length, 1), tile_rows)
    num_tiles = min(num_segments * per_segment, num_rows // tile_rows + num_segments)
    is_even = num_tiles == num_segments * per_segment
    return Programs(num_tiles, per_segment, is_even, 64 if num_segments <= 64 else 1024)


def log2_scale(scale):
    """What scores are multiplied by before ``exp2``; ``scale`` is not negative."""
    return max(scale * _LOG2_E, _SMALLEST_SCALE)


def segment_attention(q, k, v, offsets, max_length, scale, out=None, tiles=None):
    """Arguments as the operator's; ``out`` of any row and head stride. ``tiles``: for tuning."""
    num_rows, heads, head_dim = q.shape
    out = q.new_empty(q.shape) if out is None else out
    if num_rows == 0:
        return out
    if scale < 0:
        q, scale = -q, -scale
    num_segments = offsets.shape[0] - 1
    max_length = min(max_length, num_rows)
    tiles = tiles or tiles_for(
        capability_of(q.device),
        head_dim=head_dim,
        dtype=q.dtype,
        max_length=max_length,
        work=num_rows * heads,
    )
    shared = programs(num_rows, num_segments, max_length, tiles.rows)
    main, rest = head_parts(head_dim)
    is_wide = q.dtype.itemsize > 2
    segment_attention_kernel[(shared.num_tiles * heads,)](
        q,
        k,
        v,
        out,
        offsets,
        num_segments,
        shared.per_segment,
        log2_scale(scale),
        q_row=q.stride(0),
        q_head=q.stride(1),
        k_row=k.stride(0),
        k_head=k.stride(1),
        v_row=v.stride(0),
        v_head=v.stride(1),
        out_row=out.stride(0),
        out_head=out.stride(1),
        heads=heads,
        head_dim=head_dim,
        main=main,
        rest=rest,
        tile_rows=tiles.rows,
        tile_keys=tiles.keys,
        is_single=tiles.is_single,
        is_even=shared.is_even,
        block=shared.block,
        precision="ieee" if is_wide else "tf32",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        enable_fp_fusion=True,
    )
    return out
