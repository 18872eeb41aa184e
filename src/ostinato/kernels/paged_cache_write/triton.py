"""One program copies the keys and values of a few tokens."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.tiles import tile


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def paged_cache_write_kernel(
    key_pointer,
    value_pointer,
    key_cache_pointer,
    value_cache_pointer,
    slots_pointer,
    num_tokens,
    key_stride: tl.constexpr,
    value_stride: tl.constexpr,
    width: tl.constexpr,
    tile_tokens: tl.constexpr,
    columns: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * tile_tokens + tl.arange(0, tile_tokens)[:, None]
    column = tl.arange(0, columns)[None, :]
    is_inside = (token < num_tokens) & (column < width)
    # Read without waiting for the slots; which of them are dropped shows in the writes.
    slot = tl.load(slots_pointer + token, mask=token < num_tokens, other=-1).to(tl.int64)
    key = tl.load(key_pointer + token * key_stride + column, mask=is_inside)
    value = tl.load(value_pointer + token * value_stride + column, mask=is_inside)
    mask = is_inside & (slot >= 0)
    tl.store(key_cache_pointer + slot * width + column, key, mask=mask)
    tl.store(value_cache_pointer + slot * width + column, value, mask=mask)


def paged_cache_write(key, value, key_cache, value_cache, slots):
    tokens, heads, head_dim = key.shape
    key, value = (x if x.stride()[1:] == (head_dim, 1) else x.contiguous() for x in (key, value))
    width = heads * head_dim
    tile_tokens, columns, warps = tile("paged_cache_write", width)
    paged_cache_write_kernel[(ceil_div(tokens, tile_tokens),)](
        key,
        value,
        key_cache,
        value_cache,
        slots.contiguous(),
        tokens,
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        width=width,
        tile_tokens=tile_tokens,
        columns=columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
