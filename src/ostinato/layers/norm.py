"""LayerNorm and RMSNorm, alone and after a residual addition."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.layers.linear import unset


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)`` in float32, rounded to ``x.dtype``, then times ``weight``.

    Zhang and Sennrich 2019; the rounding before the weight is that of T5 and its descendants.
    """
    x_f32 = x.float()
    normed = x_f32 * torch.rsqrt(x_f32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


class Norm(Protocol):
    """Normalises the last dimension."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """``(x + delta, norm(x + delta))``: the pair that a fused operator makes in one pass."""


class LayerNorm(nn.Module):
    """``weight`` and ``bias``: (width,)."""

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = unset(width)
        self.bias = unset(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        total = x + delta
        return total, layer_norm(total, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """``weight``: (width,)."""

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = unset(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        total = x + delta
        return total, rms_norm(total, self.weight, self.eps)
