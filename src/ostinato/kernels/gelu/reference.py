"""The eager chain: add the bias, activate; each rounds to x's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ostinato.kernels.activations import FUNCTIONS
from ostinato.kernels.bounds import FP32_EPS, units


def gelu(x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return FUNCTIONS[activation](x if bias is None else x + bias).contiguous()


def erf_tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The kernel's ``erf`` is off by some fp32 units of ``1 + erf``, which x scales; then one
    rounding.
    """
    x, bias, _ = args
    size = x.float().abs() if bias is None else x.float().abs() + bias.float().abs()
    return [units(expected[0]) + 8 * FP32_EPS * size]
