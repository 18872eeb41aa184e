"""One program copies one token's keys and values."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import power_of_two


@quick
@triton.jit
def paged_cache_write_kernel(
    key_pointer,
    value_pointer,
    key_cache_pointer,
    value_cache_pointer,
    slots_pointer,
    key_stride: tl.constexpr,
    value_stride: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_pointer + token + tl.arange(0, 1)).to(tl.int64)
    column = tl.arange(0, columns)
    mask = (column < width) & (slot >= 0)
    key = tl.load(key_pointer + token * key_stride + column, mask=mask)
    value = tl.load(value_pointer + token * value_stride + column, mask=mask)
    tl.store(key_cache_pointer + slot * width + column, key, mask=mask)
    tl.store(value_cache_pointer + slot * width + column, value, mask=mask)


def paged_cache_write(key, value, key_cache, value_cache, slots):
    tokens, heads, head_dim = key.shape
    key, value = (x if x.stride()[1:] == (head_dim, 1) else x.contiguous() for x in (key, value))
    width = heads * head_dim
    paged_cache_write_kernel[(tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slots.contiguous(),
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        width=width,
        columns=power_of_two(width),
        num_warps=4,
        enable_fp_fusion=False,
    )
