"""The eager chain: add the bias, activate; each rounds to x's dtype."""

from __future__ import annotations

import torch

from ostinato.kernels.activations import FUNCTIONS


def gelu(x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return FUNCTIONS[activation](x if bias is None else x + bias).contiguous()
