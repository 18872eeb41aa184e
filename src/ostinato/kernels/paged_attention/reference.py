"""Dense attention over every page of every sequence, in fp32; reads no device value on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ostinato.kernels.bounds import FP32_EPS
from ostinato.kernels.examples import values

MOST_SPLITS = 16
"""Programs that share a sequence's keys, at most."""


def paged_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_offsets: torch.Tensor,
    kv_lengths: torch.Tensor,
    max_query_length: int,
    scale: float,
    split_length: int,
) -> torch.Tensor:
    heads = q.shape[1]
    offsets, lengths = query_offsets.long(), kv_lengths.long()
    counts = offsets[1:] - offsets[:-1]
    step = torch.arange(max_query_length, device=q.device)
    rows = (offsets[:-1, None] + step).clamp(max=q.shape[0] - 1)
    # (batch, heads, queries, keys); a page that no sequence owns may hold NaN and must not show.
    keys = _gather(key_cache, page_table, lengths, heads)
    scores = torch.einsum("bqhd,bkhd->bhqk", q[rows].float(), keys) * scale
    key = torch.arange(keys.shape[1], device=q.device)
    visible = (lengths - counts)[:, None] + step + 1
    is_visible = key < torch.minimum(visible, lengths[:, None])[..., None]
    scores = scores.masked_fill(~is_visible[:, None], -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    weights = torch.where(is_visible.any(-1)[:, None, :, None], weights, 0.0)
    dense = torch.einsum(
        "bhqk,bkhd->bqhd", weights, _gather(value_cache, page_table, lengths, heads)
    )
    token = torch.arange(q.shape[0], device=q.device)
    owner = torch.searchsorted(offsets, token, right=True) - 1
    is_owned = token < offsets[-1]
    owner = owner.clamp(max=counts.shape[0] - 1)
    position = (token - offsets[owner]).clamp(max=max_query_length - 1)
    return torch.where(is_owned[:, None, None], dense[owner, position], 0.0).to(q.dtype)


def _gather(
    cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor, heads: int
) -> torch.Tensor:
    """(batch, keys, heads, head_dim) in fp32, zero beyond each sequence's length."""
    pages = cache[page_table.long().clamp(min=0, max=cache.shape[0] - 1)].flatten(1, 2)
    is_key = torch.arange(pages.shape[1], device=cache.device) < lengths[:, None]
    own = torch.where(is_key[..., None, None], pages.float(), 0.0)
    return own.repeat_interleave(heads // cache.shape[2], dim=2)


def tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Three units of the cache's dtype of the largest value any query may see.

    Weights are rounded to that dtype before they multiply values, and the result is rounded once;
    fp32 sums of up to some thousand terms add 64 fp32 units.
    """
    values_ = args[2].float()
    largest = torch.where(values_.isfinite(), values_.abs(), 0.0).max()
    unit = 3 * torch.finfo(args[0].dtype).eps + 64 * FP32_EPS
    return [unit * largest.expand(expected[0].shape)]


def examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Few sequences in a small shuffled cache of the call's layout, unowned slots poisoned by NaN.

    Lengths stand at the edges of pages, splits and tiles; one sequence has no query and one no key.
    With splits the longest has more blocks than there are programs to share them. Tables are as far
    apart as the call's, and no wider than the longest sequence: what is dense here must stay small.
    """
    q, key_cache, value_cache, page_table, _, _, max_query_length, scale, split_length = args
    page_size, max_pages = key_cache.shape[1], page_table.shape[1]
    capacity = min(page_size * max_pages, max(600, (MOST_SPLITS + 1) * split_length))
    few = min(max_query_length, 40)
    counts = [few, 0, 1, max(1, few // 2), few]
    lengths = [capacity, 0, 1, min(capacity, max(split_length, 64)), min(capacity, few + 63)]
    counts = [min(n, k) for n, k in zip(counts, lengths, strict=True)]
    device, kind = q.device, {"device": q.device, "dtype": torch.int32}
    table = torch.zeros((len(counts), max_pages), dtype=page_table.dtype)
    own_pages = [-(-k // page_size) for k in lengths]
    order = torch.randperm(sum(own_pages), generator=torch.Generator().manual_seed(0)) + 1
    for row, n in enumerate(own_pages):
        table[row, :n] = order[sum(own_pages[:row]) : sum(own_pages[: row + 1])]
    narrow = table.to(device)[:, : max(own_pages)]
    for number, size in enumerate((1.0, 6.0, 1e-3, 0.0)):
        caches = []
        for i, cache in enumerate((key_cache, value_cache)):
            shape = (sum(own_pages) + 1, *cache.shape[1:])
            filled = values("normal", shape, cache, seed=number + i) * (size if i == 0 else 1.0)
            filled[0] = torch.nan
            for row, (n, k) in enumerate(zip(own_pages, lengths, strict=True)):
                if k % page_size:
                    filled[int(table[row, n - 1]), k % page_size :] = torch.nan
            caches.append(filled)
        tail = 3  # rows that belong to no sequence
        own_q = values("normal", (sum(counts) + tail, *q.shape[1:]), q, seed=number)
        offsets = torch.tensor([0, *counts]).cumsum(0).to(**kind)
        yield (
            *(own_q, *caches, narrow, offsets, torch.tensor(lengths).to(**kind)),
            *(max_query_length, scale, split_length),
        )
