"""Causal attention of new queries over a paged cache, grouped queries, split over keys.

Close: online softmax and another order of summation; the bound is in the reference.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.paged_attention import reference

__all__ = ["paged_attention"]


def _fake(q: torch.Tensor, *rest: object) -> torch.Tensor:
    return q.new_empty(q.shape)


_attend = register(
    Operator(
        name="paged_attention",
        reference=reference.paged_attention,
        kernel=lazy_kernel(__name__, "paged_attention"),
        exactness="close",
        tolerance=reference.tolerance,
        rows=("q", "page_table", "query_offsets", "kv_lengths"),
        examples=reference.examples,
        is_row_invariant=True,
        options=(("enable_fp_fusion", True),),
        is_timed=False,
    ),
    "(Tensor q, Tensor key_cache, Tensor value_cache, Tensor page_table, Tensor query_offsets, "
    "Tensor kv_lengths, int max_query_length, float scale, int split_length) -> Tensor",
    _fake,
    out=True,
)


def paged_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_offsets: torch.Tensor,
    kv_lengths: torch.Tensor,
    *,
    max_query_length: int,
    scale: float,
    split_length: int = 0,
) -> torch.Tensor:
    """(T, heads, head_dim) of q's dtype; rows of no sequence and of no key are zero.

    ``q`` (T, heads, head_dim) holds the new queries of all sequences, one after the other, sequence
    b at ``query_offsets[b] : query_offsets[b + 1]`` ((B + 1,), ascending from 0). Caches are
    (pages, page_size, kv_heads, head_dim) and already hold the new keys; sequence b has
    ``kv_lengths[b]`` of them in the pages ``page_table[b]`` (B, max_pages). Its queries are its
    last positions: query i of n sees keys up to ``kv_length - n + i``. All integers are int32 or
    int64, data of a recording, and not checked; no sequence may have more than ``max_query_length``
    queries (a host number that is baked). ``split_length`` > 0 divides keys among programs at
    multiples of that many keys, whatever the batch and the table hold; 0 does not divide them.
    """
    _check(q, key_cache, value_cache, page_table, query_offsets, kv_lengths)
    if max_query_length < 1 or split_length < 0:
        raise ConfigError(
            f"paged_attention: max_query_length is {max_query_length} and split_length "
            f"{split_length}, expected at least 1 and 0"
        )
    result: torch.Tensor = _attend(
        *(q, key_cache, value_cache, page_table, query_offsets, kv_lengths),
        *(max_query_length, scale, split_length),
    )
    return result


def _check(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_offsets: torch.Tensor,
    kv_lengths: torch.Tensor,
) -> None:
    if key_cache.shape != value_cache.shape or not key_cache.is_contiguous():
        raise ConfigError(
            f"paged_attention: caches are {tuple(key_cache.shape)} and {tuple(value_cache.shape)}, "
            "expected equal and contiguous ones"
        )
    heads, kv_heads = q.shape[1], key_cache.shape[2]
    if heads % kv_heads or q.shape[2] != key_cache.shape[3] or q.dtype != key_cache.dtype:
        raise ConfigError(
            f"paged_attention: q is {tuple(q.shape)} {q.dtype}, caches {tuple(key_cache.shape)} "
            f"{key_cache.dtype}"
        )
    batch = page_table.shape[0]
    if tuple(query_offsets.shape) != (batch + 1,) or tuple(kv_lengths.shape) != (batch,):
        raise ConfigError(
            f"paged_attention: {batch} rows of pages, {query_offsets.shape[0]} offsets and "
            f"{kv_lengths.shape[0]} lengths; expected n, n + 1 and n"
        )
