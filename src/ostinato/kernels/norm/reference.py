"""The eager chains that the norm kernels must agree with, and how far they may be from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import layer_norm as _torch_layer_norm

from ostinato.kernels.bounds import FP32_EPS, units


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return _torch_layer_norm(x, (x.shape[-1],), weight, bias, eps).contiguous()


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    normed = wide.to(x.dtype).contiguous()
    return normed if weight is None else weight * normed


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    total = (x + residual).contiguous()
    return layer_norm(total, weight, bias, eps), total


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = (x + residual).contiguous()
    return rms_norm(total, weight, eps), total


def layer_norm_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """One unit in the last place of the result, and fp32 sums: 32 eps of the row's largest term."""
    x, weight, bias, eps = args
    scale = weight.float().abs().max() if weight is not None else 1.0
    terms = _largest(x) * _inverse_std(x, eps) * scale
    if bias is not None:
        terms = terms + bias.float().abs().max()
    return [units(expected[0]) + 32 * FP32_EPS * terms]


def rms_norm_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """Three units in the last place: one of the normalised value, and a second rounding."""
    return [3 * units(expected[0]) + 32 * FP32_EPS * expected[0].float().abs()]


def add_layer_norm_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """The norm's bound on the sum; the sum itself is bit-exact."""
    normed = layer_norm_tolerance(expected[:1], (expected[1], *args[2:]))
    return [*normed, torch.zeros_like(expected[1], dtype=torch.float32)]


def add_rms_norm_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """The norm's bound on the sum; the sum itself is bit-exact."""
    normed = rms_norm_tolerance(expected[:1], (expected[1], *args[2:]))
    return [*normed, torch.zeros_like(expected[1], dtype=torch.float32)]


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.float().abs().amax(-1, keepdim=True)


def _inverse_std(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.double().var(-1, keepdim=True, correction=0) + eps).float()
