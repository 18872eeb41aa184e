"""LayerNorm and RMSNorm, alone and after a residual addition."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.kernels.linear import linear_add_layer_norm, linear_add_rms_norm
from ostinato.kernels.norm import layer_norm, rms_norm
from ostinato.layers.linear import Linear, unset


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension, (width,)."""

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = unset(width)
        self.bias = unset(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def after(self, linear: Linear, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(norm(y), y)`` with ``y = x + linear(rows)``."""
        return linear_add_layer_norm(
            rows, linear.weight, linear.bias, x, self.weight, self.bias, self.eps
        )


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps)`` in float32, rounded to ``x.dtype``, then times ``weight``.

    Zhang and Sennrich 2019; the rounding before the weight is that of T5 and its descendants.
    ``weight``: (width,).
    """

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = unset(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def after(self, linear: Linear, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(norm(y), y)`` with ``y = x + linear(rows)``."""
        return linear_add_rms_norm(rows, linear.weight, linear.bias, x, self.weight, self.eps)
