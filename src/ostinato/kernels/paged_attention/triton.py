"""Online softmax over pages. A tile's rows are queries times the heads that share a key head.

With splits, keys are dealt out to at most ``MOST_SPLITS`` programs in blocks of fixed length, in
turn: which keys a program sees is a matter of their places alone. Each leaves its normalised result
and the logarithm of its sum; a second kernel joins them and writes every row.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.paged_attention.reference import MOST_SPLITS
from ostinato.kernels.rowwise import ceil_div, power_of_two

_LOG2_E = 1.4426950408889634


@quick
@triton.jit(do_not_specialize=["num_tokens", "query_blocks"])
def attend_kernel(
    q_pointer,
    key_pointer,
    value_pointer,
    table_pointer,
    offsets_pointer,
    lengths_pointer,
    out_pointer,
    log_sums_pointer,
    num_tokens,
    query_blocks,
    scale_log2,
    q_stride: tl.constexpr,
    table_stride: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    columns: tl.constexpr,
    page_size: tl.constexpr,
    split_length: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_queries: tl.constexpr,
    tile_keys: tl.constexpr,
    tiles_per_block: tl.constexpr,
    precision: tl.constexpr,
):
    """``out`` is the result, or with splits fp32 parts (splits, T, heads, head_dim)."""
    sequence = tl.program_id(0) // query_blocks
    first = (tl.program_id(0) % query_blocks) * tile_queries
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(offsets_pointer + sequence).to(tl.int32)
    count = tl.load(offsets_pointer + sequence + 1).to(tl.int32) - start
    if first < count:
        kv_length = tl.load(lengths_pointer + sequence).to(tl.int32)
        group: tl.constexpr = heads // kv_heads
        row = tl.arange(0, tile_rows)
        query = first + row // group
        is_row = (row // group < tile_queries) & (query < count)
        token_head = (start + query).to(tl.int64) * heads + kv_head * group + row % group
        column = tl.arange(0, columns)
        is_column = column < head_dim
        q_row = (start + query).to(tl.int64) * q_stride + (kv_head * group + row % group) * head_dim
        is_value = is_row[:, None] & is_column[None, :]
        q = tl.load(q_pointer + q_row[:, None] + column[None, :], mask=is_value, other=0.0)
        limit = kv_length - count + query + 1
        end = tl.minimum(kv_length, kv_length - count + first + tile_queries)
        num_tiles = tl.cdiv(end, tile_keys)
        if split_length > 0:
            num_splits = tl.num_programs(2)
            num_blocks = (tl.cdiv(end, split_length) - split + num_splits - 1) // num_splits
            num_tiles = num_blocks * tiles_per_block
        largest = tl.full((tile_rows,), float("-inf"), tl.float32)
        total = tl.zeros((tile_rows,), tl.float32)
        acc = tl.zeros((tile_rows, columns), tl.float32)
        for tile in range(0, num_tiles):
            key = tile * tile_keys + tl.arange(0, tile_keys)
            is_key = key < end
            if split_length > 0:
                begin = (tile // tiles_per_block * num_splits + split) * split_length
                key = begin + tile % tiles_per_block * tile_keys + tl.arange(0, tile_keys)
                is_key = key < tl.minimum(end, begin + split_length)
            page = tl.load(
                table_pointer + sequence * table_stride + key // page_size, mask=is_key, other=0
            )
            slot = page.to(tl.int64) * page_size + key % page_size
            at = (slot * kv_heads + kv_head) * head_dim
            mask = is_key[:, None] & is_column[None, :]
            k = tl.load(key_pointer + at[:, None] + column[None, :], mask=mask, other=0.0)
            v = tl.load(value_pointer + at[:, None] + column[None, :], mask=mask, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale_log2
            is_seen = is_key[None, :] & (key[None, :] < limit[:, None])
            scores = tl.where(is_seen, scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=1))
            safe = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            weights = tl.exp2(scores - safe[:, None])
            shrink = tl.exp2(largest - safe)
            total = total * shrink + tl.sum(weights, axis=1)
            acc = acc * shrink[:, None]
            acc += tl.dot(weights.to(v.dtype), v, input_precision=precision)
            largest = new_largest
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        target = token_head
        if split_length > 0:
            target += split.to(tl.int64) * num_tokens * heads
            log_sum = tl.where(
                total == 0.0, float("-inf"), largest + tl.log2(tl.where(total == 0.0, 1.0, total))
            )
            tl.store(log_sums_pointer + target, log_sum, mask=is_row)
        tl.store(out_pointer + target[:, None] * head_dim + column[None, :], acc, mask=is_value)


@quick
@triton.jit(do_not_specialize=["num_tokens", "num_sequences", "num_splits"])
def join_kernel(
    parts_pointer,
    log_sums_pointer,
    offsets_pointer,
    out_pointer,
    num_tokens,
    num_sequences,
    num_splits,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    columns: tl.constexpr,
    most_splits: tl.constexpr,
):
    """One program per token and head; a row of no sequence is written as zero.

    The sum is over ``most_splits`` in every launch, so that its order is always the same.
    """
    row = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    column = tl.arange(0, columns)
    is_column = column < head_dim
    one = tl.arange(0, 1)
    is_owned = tl.program_id(0) + one < tl.load(offsets_pointer + num_sequences + one)
    split = tl.arange(0, most_splits)
    part = split.to(tl.int64) * num_tokens * heads + row
    is_split = is_owned & (split < num_splits)
    log_sums = tl.load(log_sums_pointer + part, mask=is_split, other=float("-inf"))
    largest = tl.max(log_sums, axis=0)
    weights = tl.exp2(log_sums - tl.where(largest == float("-inf"), 0.0, largest))
    values = tl.load(
        parts_pointer + part[:, None] * head_dim + column[None, :],
        mask=(weights > 0.0)[:, None] & is_column[None, :],
        other=0.0,
    )
    total = tl.sum(weights, axis=0)
    acc = tl.sum(values * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_pointer + row * head_dim + column, acc, mask=is_column)


def paged_attention(
    q, key_cache, value_cache, page_table, query_offsets, kv_lengths, max_query_length, scale,
    split_length,
):  # fmt: skip
    tokens, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = key_cache.shape
    if q.stride()[1:] != (head_dim, 1):
        q = q.contiguous()
    group = heads // kv_heads
    tile_rows = max(16, power_of_two(group), min(64, power_of_two(max_query_length * group)))
    tile_queries = tile_rows // group
    query_blocks = ceil_div(max_query_length, tile_queries)
    columns = max(16, power_of_two(head_dim))
    is_wide = q.dtype == torch.float32
    capacity = page_table.shape[1] * page_size
    num_splits = min(MOST_SPLITS, ceil_div(capacity, split_length)) if split_length else 1
    tile_keys = 32 if is_wide else 64
    if split_length:
        out = q.new_empty((tokens, heads, head_dim))
        parts = q.new_empty((num_splits, tokens, heads, head_dim), dtype=torch.float32)
        log_sums = q.new_empty((num_splits, tokens, heads), dtype=torch.float32)
    else:
        out = parts = log_sums = q.new_zeros((tokens, heads, head_dim))
    attend_kernel[(page_table.shape[0] * query_blocks, kv_heads, num_splits)](
        q,
        key_cache,
        value_cache,
        page_table,
        query_offsets,
        kv_lengths,
        parts,
        log_sums,
        tokens,
        query_blocks,
        scale * _LOG2_E,
        q_stride=q.stride(0),
        table_stride=page_table.stride(0),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        columns=columns,
        page_size=page_size,
        split_length=split_length,
        tile_rows=tile_rows,
        tile_queries=tile_queries,
        tile_keys=tile_keys,
        tiles_per_block=ceil_div(split_length, tile_keys),
        precision="ieee" if is_wide else "tf32",
        num_warps=4,
        num_stages=1 if is_wide else 2,
        enable_fp_fusion=True,
    )
    if split_length:
        join_kernel[(tokens, heads)](
            parts,
            log_sums,
            query_offsets,
            out,
            tokens,
            page_table.shape[0],
            num_splits,
            heads=heads,
            head_dim=head_dim,
            columns=columns,
            most_splits=MOST_SPLITS,
            num_warps=1,
            enable_fp_fusion=True,
        )
    return out
