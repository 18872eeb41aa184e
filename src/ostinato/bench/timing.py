"""Device time of calls, and what the machine can reach: a copy's bandwidth, a product's speed.

Work is queued behind a spin, so that launches do not count; buffers are rotated over more memory
than any cache holds. Every byte is counted once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato.kernels.examples import like
from ostinato.kernels.timing import SPIN_CYCLES, behind_a_spin
from ostinato.kernels.workloads import Workload

Calls = Sequence[Callable[[], object]]
Clock = Callable[[Calls], float]
"""Seconds of one call, where the calls given are one round."""

ROTATED_BYTES = 512 * 2**20
_MAX_COPIES = 24
_PRODUCT_SIZE = 8192


def device_seconds_per_call(calls: Calls, *, num_calls: int = _MAX_COPIES) -> float:
    """Median device seconds of one call; ``calls`` is one round over the rotated buffers.

    ``num_calls``: how many are queued behind a spin; fewer where a launch takes long.
    """
    repeats = max(1, num_calls // len(calls))
    for call in calls:
        call()
    samples, spin_cycles, batch = [], SPIN_CYCLES, [*calls] * repeats
    for _ in range(7):
        seconds, spin_cycles = behind_a_spin(batch, spin_cycles)
        samples.append(seconds / len(batch))
    return statistics.median(samples)


def rotated(workload: Workload) -> list[tuple[Any, ...]]:
    """Copies of the arguments that together exceed the cache by far."""
    return [
        tuple(like(a, a) if isinstance(a, torch.Tensor) else a for a in workload.args)
        for _ in range(_num_rotated(workload.num_bytes()))
    ]


def _num_rotated(num_bytes: int) -> int:
    """How many buffers of a call that moves ``num_bytes`` exceed the cache, within reason."""
    return min(_MAX_COPIES, max(1, -(-ROTATED_BYTES // num_bytes)))


def copy_bandwidth(clock: Clock = device_seconds_per_call, *, device: str = "cuda") -> float:
    """Bytes per second of a device copy, read and write counted."""
    source = torch.empty(ROTATED_BYTES // 4, dtype=torch.uint8, device=device)
    targets = [torch.empty_like(source) for _ in range(4)]
    return 2 * source.numel() / clock([lambda t=t: t.copy_(source) for t in targets])  # type: ignore[misc]


def copies_of(num_bytes: int, *, device: str = "cuda") -> list[Callable[[], object]]:
    """One round of copies that each move ``num_bytes``, read and write counted, as an operator
    moves them: from rotated buffers to new memory.
    """
    shape = (max(1, num_bytes // 2),)
    return [
        torch.empty(shape, dtype=torch.uint8, device=device).clone
        for _ in range(_num_rotated(num_bytes))
    ]


def product_speed(
    dtype: torch.dtype, clock: Clock = device_seconds_per_call, *, device: str = "cuda"
) -> float:
    """Operations per second of a large square matrix product."""
    n = _PRODUCT_SIZE if device == "cuda" else 64
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2 * n**3 / clock([lambda: a @ b])
