"""One program takes some tokens and up to 16 heads of one section; a lane is a head of a token."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rope.reference import empty_heads
from ostinato.kernels.rowwise import ceil_div, power_of_two
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_math import through_pairs

_SECTOR = 16
"""Channels of 16 bits in what the memory writes at once."""


@triton.jit
def _rounded(x, pointer, rounds_each: tl.constexpr):
    return through_pairs(x, pointer) if rounds_each else x


@triton.jit
def _load_pairs(pointer, half: tl.constexpr, columns: tl.constexpr, is_half: tl.constexpr, is_head):
    """Both members of each pair, (heads, columns) fp32; ``pointer`` is (heads, 1)."""
    if is_half:
        column = tl.arange(0, columns)[None, :]
        mask = is_head & (column < half)
        first = tl.load(pointer + column, mask=mask, other=0.0)
        second = tl.load(pointer + half + column, mask=mask, other=0.0)
    else:
        column = tl.arange(0, 2 * columns)[None, :]
        both = tl.load(pointer + column, mask=is_head & (column < 2 * half), other=0.0)
        first, second = tl.split(tl.reshape(both, (both.shape[0], columns, 2)))
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _store_pairs(
    pointer,
    first,
    second,
    half: tl.constexpr,
    columns: tl.constexpr,
    is_half: tl.constexpr,
    is_head,
    padding: tl.constexpr,
):
    """``padding`` more channels are zero: what was loaded beyond a head."""
    if is_half:
        column = tl.arange(0, columns)[None, :]
        tl.store(pointer + column, first, mask=is_head & (column < half))
        tl.store(pointer + half + column, second, mask=is_head & (column < half + padding))
    else:
        column = tl.arange(0, 2 * columns)[None, :]
        both = tl.reshape(tl.join(first, second), (first.shape[0], 2 * columns))
        tl.store(pointer + column, both, mask=is_head & (column < 2 * half + padding))


@triton.jit
def _section(
    source,
    target,
    weight_pointer,
    cos_pointer,
    sin_pointer,
    is_token,
    is_head,
    eps,
    half: tl.constexpr,
    columns: tl.constexpr,
    is_half: tl.constexpr,
    has_norm: tl.constexpr,
    has_weight: tl.constexpr,
    rounds_each: tl.constexpr,
    padding: tl.constexpr,
):
    """Normalise and rotate (lanes, head_dim); the pointers are (lanes, 1), tables' may be scalars.

    Everything is loaded before the sums, which take longer than the way to the memory.
    """
    is_head = is_head & is_token
    first, second = _load_pairs(source, half, columns, is_half, is_head)
    column = tl.arange(0, columns)[None, :]
    is_column = is_token & (column < half)
    cos = tl.load(cos_pointer + column, mask=is_column, other=0.0).to(tl.float32)
    sin = tl.load(sin_pointer + column, mask=is_column, other=0.0).to(tl.float32)
    if has_weight:
        zero = tl.zeros((1, 1), dtype=tl.int32)
        w_first, w_second = _load_pairs(weight_pointer + zero, half, columns, is_half, zero == 0)
    if has_norm:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scale = tl.rsqrt(squares / (2 * half) + eps)[:, None]
        first = through_pairs(first * scale, target)
        second = through_pairs(second * scale, target)
        if has_weight:
            first = through_pairs(first * w_first, target)
            second = through_pairs(second * w_second, target)
    first_cos = _rounded(first * cos, target, rounds_each)
    # Subtracted, not negated: Triton 3.6 writes -x as 0 - x, which loses the sign of a zero.
    second_sin = _rounded(second * sin, target, rounds_each)
    second_cos = _rounded(second * cos, target, rounds_each)
    first_sin = _rounded(first * sin, target, rounds_each)
    _store_pairs(
        target, first_cos - second_sin, second_cos + first_sin, half, columns, is_half, is_head,
        padding,
    )  # fmt: skip


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def rope_kernel(
    qkv_pointer,
    cos_pointer,
    sin_pointer,
    q_weight_pointer,
    k_weight_pointer,
    q_pointer,
    k_pointer,
    v_pointer,
    num_tokens,
    eps,
    qkv_stride: tl.constexpr,
    cos_stride: tl.constexpr,
    sin_stride: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_stride: tl.constexpr,
    half: tl.constexpr,
    columns: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_heads: tl.constexpr,
    is_half: tl.constexpr,
    has_norm: tl.constexpr,
    has_q_weight: tl.constexpr,
    has_k_weight: tl.constexpr,
    rounds_each: tl.constexpr,
    is_v_cleaned: tl.constexpr,
    padding: tl.constexpr,
):
    block = tl.program_id(1)
    head_dim: tl.constexpr = 2 * half
    q_blocks: tl.constexpr = (heads + tile_heads - 1) // tile_heads
    kv_blocks: tl.constexpr = (kv_heads + tile_heads - 1) // tile_heads
    lane = tl.arange(0, tile_tokens * tile_heads)[:, None]
    head_of_lane = lane % tile_heads
    if tile_tokens == 1:
        token = tl.program_id(0).to(tl.int64)  # its table row is loaded once for all heads
        is_token = tl.full((1, 1), 1, tl.int1)
    else:
        token = tl.program_id(0).to(tl.int64) * tile_tokens + lane // tile_heads
        is_token = token < num_tokens
    row = qkv_pointer + token * qkv_stride
    cos_row = cos_pointer + token * cos_stride
    sin_row = sin_pointer + token * sin_stride
    if block < q_blocks:
        head = block * tile_heads + head_of_lane
        target = q_pointer + (token * heads + head) * head_stride
        _section(
            row + head * head_dim, target, q_weight_pointer, cos_row, sin_row, is_token,
            head < heads, eps, half, columns, is_half, has_norm, has_q_weight, rounds_each,
            padding,
        )  # fmt: skip
    elif block < q_blocks + kv_blocks:
        head = (block - q_blocks) * tile_heads + head_of_lane
        target = k_pointer + (token * kv_heads + head) * head_stride
        _section(
            row + (heads + head) * head_dim, target, k_weight_pointer, cos_row, sin_row, is_token,
            head < kv_heads, eps, half, columns, is_half, has_norm, has_k_weight, rounds_each,
            padding,
        )  # fmt: skip
    else:
        head = (block - q_blocks - kv_blocks) * tile_heads + head_of_lane
        column = tl.arange(0, 2 * columns)[None, :]
        is_head = is_token & (head < kv_heads)
        source = row + (heads + kv_heads + head) * head_dim + column
        values = tl.load(source, mask=is_head & (column < head_dim), other=0.0)
        if is_v_cleaned:
            is_finite = tl.abs(values.to(tl.float32)) < float("inf")
            values = tl.where(is_finite, values, 0.0).to(v_pointer.dtype.element_ty)
        target = v_pointer + (token * kv_heads + head) * head_stride
        tl.store(target + column, values, mask=is_head & (column < head_dim + padding))


def rope(qkv, cos, sin, heads, kv_heads, head_dim, style, is_v_cleaned, is_spaced):
    sizes = (heads, kv_heads, head_dim, style)
    return _launch(
        qkv, cos, sin, None, None, None, *sizes, is_v_cleaned=is_v_cleaned, is_spaced=is_spaced
    )


def norm_rope(qkv, cos, sin, q_weight, k_weight, eps, heads, kv_heads, head_dim, style):
    return _launch(qkv, cos, sin, q_weight, k_weight, eps, heads, kv_heads, head_dim, style)


def _launch(
    qkv,
    cos,
    sin,
    q_weight,
    k_weight,
    eps,
    heads,
    kv_heads,
    head_dim,
    style,
    *,
    is_v_cleaned=False,
    is_spaced=False,
):
    tokens = qkv.shape[0]
    if qkv.stride(1) != 1:
        qkv = qkv.contiguous()
    q, k, v = (
        empty_heads(qkv, count, head_dim, is_spaced=is_spaced)
        for count in (heads, kv_heads, kv_heads)
    )
    half = head_dim // 2
    columns = power_of_two(half)
    # Whole sectors of 32 bytes, as far as the lanes reach: a part of one is read before it is
    # written (16,384 rows of 16x72: 115 us instead of 75).
    padding = min(-head_dim % _SECTOR, columns - half) if is_spaced else 0
    name = "rope" if eps is None else "norm_rope"
    tile_tokens, tile_heads, warps = tile(name, head_dim, heads)
    blocks = ceil_div(heads, tile_heads) + 2 * ceil_div(kv_heads, tile_heads)
    promoted = torch.promote_types(qkv.dtype, cos.dtype)
    rope_kernel[(ceil_div(tokens, tile_tokens), blocks)](
        qkv,
        cos if cos.stride(1) == 1 else cos.contiguous(),
        sin if sin.stride(1) == 1 else sin.contiguous(),
        q_weight if q_weight is not None else qkv,
        k_weight if k_weight is not None else qkv,
        q,
        k,
        v,
        tokens,
        0.0 if eps is None else eps,
        qkv_stride=qkv.stride(0),
        cos_stride=cos.stride(0) if cos.stride(1) == 1 else half,
        sin_stride=sin.stride(0) if sin.stride(1) == 1 else half,
        heads=heads,
        kv_heads=kv_heads,
        head_stride=q.stride(1),
        half=half,
        columns=columns,
        tile_tokens=tile_tokens,
        tile_heads=tile_heads,
        is_half=style == "half",
        has_norm=eps is not None,
        has_q_weight=q_weight is not None,
        has_k_weight=k_weight is not None,
        rounds_each=promoted != torch.float32,
        is_v_cleaned=is_v_cleaned,
        padding=padding,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return q, k, v
