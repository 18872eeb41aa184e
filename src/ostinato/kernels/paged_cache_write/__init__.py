"""Writes new keys and values into their slots of a paged cache. Bit-exact: a copy."""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.paged_cache_write import reference

__all__ = ["paged_cache_write"]


def _fake(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    return None


_write = register(
    Operator(
        name="paged_cache_write",
        reference=reference.paged_cache_write,
        kernel=lazy_kernel(__name__, "paged_cache_write"),
        exactness="bit-exact",
        rows=("key", "value", "slots"),
        writes=("key_cache", "value_cache"),
        examples=reference.examples,
        is_timed=False,
    ),
    "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slots) -> ()",
    _fake,
)


def paged_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Copy row t of ``key`` and ``value`` (T, kv_heads, head_dim) into slot ``slots[t]``.

    Caches are (pages, page_size, kv_heads, head_dim), contiguous; a slot is
    ``page * page_size + offset``. Slots (T,), int32 or int64, are distinct; a negative one drops
    its row (padding). Slot values are not checked: they are data of a recording.
    """
    for name, x, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if x.shape[1:] != cache.shape[2:] or x.dtype != cache.dtype:
            raise ConfigError(
                f"paged_cache_write: {name} is {tuple(x.shape)} {x.dtype}, "
                f"its cache {tuple(cache.shape)} {cache.dtype}"
            )
        if not cache.is_contiguous():
            raise ConfigError(f"paged_cache_write: the {name} cache is not contiguous")
    if tuple(slots.shape) != (key.shape[0],):
        raise ConfigError(
            f"paged_cache_write: slots is {tuple(slots.shape)}, expected ({len(key)},)"
        )
    if key.shape[0]:
        _write(key, value, key_cache, value_cache, slots)
