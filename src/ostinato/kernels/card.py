"""Which card a launch is meant for: the device's own, or one that is assumed to compile for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch

_SMALLEST = (8, 6)
_assumed: ContextVar[tuple[int, int] | None] = ContextVar("ostinato_card", default=None)


def capability_of(device: torch.device) -> tuple[int, int]:
    """The card that a launch is meant for: the assumed one, the device's, or else the smallest."""
    assumed = _assumed.get()
    if assumed is not None:
        return assumed
    return _capability(device) if device.type == "cuda" else _SMALLEST


@cache
def num_processors_of(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 0 for other devices."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def cache_bytes_of(device: torch.device) -> int:
    """Size of a GPU's L2 cache; 0 for other devices."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


@contextmanager
def assuming(capability: tuple[int, int]) -> Iterator[None]:
    """Make launches for another card inside the ``with`` block, to compile them without it."""
    token = _assumed.set(capability)
    try:
        yield
    finally:
        _assumed.reset(token)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
