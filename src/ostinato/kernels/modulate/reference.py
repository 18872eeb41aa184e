"""The eager chain ``(1 + scale) * layer_norm(x) + shift``; each operation rounds to x's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ostinato.kernels.bounds import units
from ostinato.kernels.norm.reference import layer_norm, layer_norm_tolerance


def modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    segments: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    normed = layer_norm(x, None, None, eps)
    return (1 + per_row(scale, segments)) * normed + per_row(shift, segments)


def per_row(x: torch.Tensor, segments: torch.Tensor | None) -> torch.Tensor:
    """Row of ``x`` (segments, width) that belongs to each token; one row belongs to all."""
    return x if segments is None else x[segments.long()]


def tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The norm's bound and one unit, both carried through the factor, and a unit per rounding."""
    x, scale, _, segments, eps = args
    normed = layer_norm(x, None, None, eps)
    [norm_error] = layer_norm_tolerance([normed], (x, None, None, eps))
    factor = (1 + per_row(scale, segments)).float().abs()
    product_error = factor * norm_error + units(factor * normed.float(), x.dtype)
    return [product_error + units(expected[0])]
