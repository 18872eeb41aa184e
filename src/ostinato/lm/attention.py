"""Where new queries meet the cache: the one place at which a decoder may be cut into pieces."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ostinato.kernels.paged_attention import paged_attention
from ostinato.kernels.paged_cache_write import paged_cache_write
from ostinato.lm.contract import Batch

SPLIT_KEYS = 128
"""Keys are divided at its multiples where there are ``FEW_QUERIES``, which leave a GPU idle."""
FEW_QUERIES = 64


class Attend(Protocol):
    """Writes keys and values (T, kv_heads, head_dim) to ``cache``, a layer's (2, pages, page_size,
    kv_heads, head_dim), and returns what ``q`` (T, heads, head_dim) sees of it, in q's shape.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: Tensor,
        batch: Batch,
        *,
        max_query_length: int,
        scale: float,
    ) -> Tensor: ...


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    batch: Batch,
    *,
    max_query_length: int,
    scale: float,
) -> Tensor:
    """The plain one: part of whatever is recorded."""
    paged_cache_write(k, v, cache[0], cache[1], batch.slots)
    return paged_attention(
        q,
        cache[0],
        cache[1],
        batch.page_table,
        batch.query_offsets,
        batch.kv_lengths,
        max_query_length=max_query_length,
        scale=scale,
        split_length=SPLIT_KEYS if max_query_length <= FEW_QUERIES else 0,
    )
