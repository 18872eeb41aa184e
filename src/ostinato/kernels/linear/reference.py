"""The eager chains of the fused products, and how far a product in another order may be away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear as _torch_linear

from ostinato.kernels.activations import FUNCTIONS
from ostinato.kernels.bounds import FP32_EPS, units
from ostinato.kernels.norm import reference as norms

_STEEPEST = 1.13
"""No activation here is steeper than this (the largest slope of GELU is 1.129)."""


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, variant: str
) -> torch.Tensor:
    product = _torch_linear(x, weight, bias)
    return FUNCTIONS[activation](product) if activation else product


def linear_add_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    eps: float,
    variant: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    product = _torch_linear(x, weight, bias)
    return norms.add_layer_norm(product, residual, norm_weight, norm_bias, eps)


def linear_add_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    norm_weight: torch.Tensor | None,
    eps: float,
    variant: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    product = _torch_linear(x, weight, bias)
    return norms.add_rms_norm(product, residual, norm_weight, eps)


def product_error(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """How far two products may be apart, in fp32: (rows, outputs).

    Both round their result. A library may also round partial sums to x's dtype, whose typical size
    is the root of the summed squares; fp32 sums in two orders differ by some fp32 units of the
    summed absolute values.
    """
    wide_x, wide_weight = x.float(), weight.float()
    total = wide_x.abs() @ wide_weight.abs().t()
    spread = (wide_x.square() @ wide_weight.square().t()).sqrt()
    value = _torch_linear(wide_x, wide_weight, None if bias is None else bias.float())
    coarse = torch.finfo(x.dtype).eps
    return units(value, x.dtype) + coarse * spread + 64 * FP32_EPS * total


def linear_tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The product's error through the activation, and one more rounding."""
    x, weight, bias, activation, _ = args
    error = product_error(x, weight, bias)
    if not activation:
        return [error]
    return [_STEEPEST * error + units(expected[0])]


def linear_add_layer_norm_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """The sum: the product's error and a rounding. The norm: that error over the row's spread."""
    x, weight, bias, _, norm_weight, norm_bias, eps, _ = args
    total = expected[1]
    own = norms.layer_norm_tolerance(expected[:1], (total, norm_weight, norm_bias, eps))[0]
    spread = (total.double().var(-1, keepdim=True, correction=0) + eps).sqrt().float()
    return _sum_and_norm(expected, product_error(x, weight, bias), spread, norm_weight, own)


def linear_add_rms_norm_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """As ``linear_add_layer_norm_tolerance``."""
    x, weight, bias, _, norm_weight, eps, _ = args
    total = expected[1]
    own = norms.rms_norm_tolerance(expected[:1], (total, norm_weight, eps))[0]
    spread = (total.double().square().mean(-1, keepdim=True) + eps).sqrt().float()
    return _sum_and_norm(expected, product_error(x, weight, bias), spread, norm_weight, own)


def _sum_and_norm(
    expected: Sequence[torch.Tensor],
    error: torch.Tensor,
    spread: torch.Tensor,
    norm_weight: torch.Tensor | None,
    own: torch.Tensor,
) -> list[torch.Tensor]:
    """A change of one column moves it by its share of the row's spread; the row's largest error
    moves mean and spread, and with them each column in proportion to its normalised value.
    """
    total = expected[1]
    error = error + units(total)
    scale = 1.0 if norm_weight is None else norm_weight.float().abs()
    worst = error.amax(-1, keepdim=True)
    normalised = total.float().abs().amax(-1, keepdim=True) / spread
    through_row = worst / spread * (1.0 + normalised)
    return [own + 2 * scale * (error / spread + through_row), error]
