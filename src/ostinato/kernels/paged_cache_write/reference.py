"""The eager chain: scatter the rows of keys and values into their slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ostinato.kernels.examples import PATTERNS, values


def paged_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    # No selection by mask: its size would be data. A row without a slot writes back what is there,
    # into the slot of the first row that has one or into slot 0, before the real rows are written.
    for new, cache in ((key, key_cache), (value, value_cache)):
        flat = cache.view(-1, *cache.shape[2:])
        is_used = (slots >= 0)[:, None, None]
        target = torch.where(slots >= 0, slots, slots.max().clamp(min=0)).long()
        source = torch.where(slots >= 0, torch.arange(slots.numel(), device=slots.device), -1)
        # Unused rows repeat the row that owns the largest slot, so that equal slots get equal rows.
        owner = slots.argmax()
        source = torch.where(source >= 0, source, owner)
        rows = torch.where(is_used | (slots.max() >= 0), new[source], flat[target])
        flat.index_copy_(0, target, rows.to(cache.dtype))


def examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Small caches of the call's layout; distinct slots, some of them unused."""
    key, value, key_cache, value_cache, slots = args
    pages = 5
    for number, pattern in enumerate(PATTERNS):
        rows = min(key.shape[0], 3 * key_cache.shape[1])
        new = [
            torch.empty_strided((rows, *x.shape[1:]), x.stride(), dtype=x.dtype, device=x.device)
            for x in (key, value)
        ]
        for i, x in enumerate(new):
            x.copy_(values(pattern, tuple(x.shape), x, seed=number + 100 * i))
        caches = [
            values("normal", (pages, *x.shape[1:]), x, seed=number)
            for x in (key_cache, value_cache)
        ]
        generator = torch.Generator(device=slots.device).manual_seed(number)
        capacity = pages * key_cache.shape[1]
        chosen = torch.randperm(capacity, generator=generator, device=slots.device)[:rows]
        chosen = torch.where(chosen % 4 == 3, -1, chosen).to(slots.dtype)
        yield (*new, *caches, chosen)
