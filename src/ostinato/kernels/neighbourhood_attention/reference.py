"""Dense gather of each query's window, then attention over it in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ostinato.kernels.bounds import FP32_EPS
from ostinato.kernels.examples import values


def window_starts(length: int, window: int, device: torch.device) -> torch.Tensor:
    """First key of each query of an axis: centred, shifted inward at both ends."""
    return (torch.arange(length, device=device) - window // 2).clamp(0, length - window)


def neighbourhood_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, scale: float
) -> torch.Tensor:
    height, width = q.shape[1:3]
    rows, columns = min(window, height), min(window, width)
    y = window_starts(height, rows, q.device)[:, None] + torch.arange(rows, device=q.device)
    x = window_starts(width, columns, q.device)[:, None] + torch.arange(columns, device=q.device)
    # (frames, height, width, rows * columns, heads, head_dim)
    at = (slice(None), y[:, None, :, None], x[None, :, None, :])
    keys, own = k[at].flatten(3, 4).float(), v[at].flatten(3, 4).float()
    scores = torch.einsum("fyxhd,fyxnhd->fyxhn", q.float(), keys) * scale
    return torch.einsum("fyxhn,fyxnhd->fyxhd", torch.softmax(scores, dim=-1), own).to(q.dtype)


def tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Three units of the largest value: weights are rounded once, the result once."""
    largest = args[2].float().abs().max()
    unit = 3 * torch.finfo(args[0].dtype).eps + 64 * FP32_EPS
    return [unit * largest.expand(expected[0].shape)]


def examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Finite inputs of the call's sizes, one frame: an infinite score has no bound to hold."""
    q, k, v, window, scale = args
    for number, size in enumerate((1.0, 6.0, 1e-3, 0.0)):
        filled = []
        for i, x in enumerate((q, k, v)):
            one = values("normal", (1, *x.shape[1:]), x, seed=number + 10 * i)
            filled.append(one * size if i == 0 else one)
        yield (*filled, window, scale)
