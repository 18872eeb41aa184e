"""Feed-forward layers: two matrices around an activation, or the gated kind."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.layers.linear import Linear


def gelu(x: Tensor) -> Tensor:
    """``x * Phi(x)``, exact (Hendrycks and Gimpel 2016)."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of ``gelu``."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``, the sigmoid approximation of ``gelu``."""
    return x * torch.sigmoid(1.702 * x)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` (Shazeer 2020)."""
    return F.silu(gate) * up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
}
"""By the names that checkpoints use in ``hidden_act``."""


class Mlp(nn.Module):
    """``fc2(activation(fc1(x)))``, both with bias."""

    def __init__(
        self, width: int, inner_width: int, *, activation: str, out_width: int | None = None
    ) -> None:
        super().__init__()
        self.fc1 = Linear(width, inner_width)
        self.fc2 = Linear(inner_width, width if out_width is None else out_width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.fc2(self.activation(self.fc1(x)))
        return hidden


class GatedMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, width: int, inner_width: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner_width, bias=bias)
        self.up_proj = Linear(width, inner_width, bias=bias)
        self.down_proj = Linear(inner_width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return hidden
