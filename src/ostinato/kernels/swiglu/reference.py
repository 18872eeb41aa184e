"""The eager chain: add the bias, activate the gate half, multiply; each rounds to x's dtype."""

from __future__ import annotations

import torch

from ostinato.kernels.activations import FUNCTIONS


def swiglu(packed: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    gate, value = (packed if bias is None else packed + bias).chunk(2, dim=-1)
    return FUNCTIONS[activation](gate).mul(value).contiguous()
