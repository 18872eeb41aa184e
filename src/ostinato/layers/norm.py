"""LayerNorm and RMSNorm, alone and after a residual addition, as the layer behind them wants it."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from ostinato.kernels.fp8 import add_norm_quantize, norm_quantize
from ostinato.kernels.linear import linear_add_layer_norm, linear_add_rms_norm
from ostinato.kernels.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from ostinato.layers.fp8 import AnyLinear, Fp8Linear, Quantised, Rows, project
from ostinato.layers.linear import Linear, unset


class _Norm(nn.Module):
    """What both norms share: handing their rows over quantised."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    eps: float
    kind: Literal["layer", "rms"]

    def before(self, then: AnyLinear | None, x: Tensor) -> Rows:
        """``norm(x)`` as ``then`` wants it; rows for ``None``."""
        if isinstance(then, Fp8Linear):
            made = norm_quantize(x, self.weight, self.bias, self.eps, kind=self.kind)
            return Quantised(*made, x.shape[0])
        rows: Tensor = self(x)
        return rows

    def after(
        self, linear: AnyLinear, rows: Rows, x: Tensor, then: AnyLinear | None = None
    ) -> tuple[Rows, Tensor]:
        """``(norm(y), y)`` with ``y = x + linear(rows)``, the first as ``then`` wants it."""
        if isinstance(then, Fp8Linear):
            values, scales, total = add_norm_quantize(
                project(linear, rows), x, self.weight, self.bias, self.eps, kind=self.kind
            )
            return Quantised(values, scales, x.shape[0]), total
        if isinstance(linear, Fp8Linear):
            return self._added(linear(rows), x)
        assert isinstance(rows, Tensor), "rows are quantised for FP8 layers only"
        return self._multiplied(linear, rows, x)

    def _added(self, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _multiplied(self, linear: Linear, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class LayerNorm(_Norm):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension, (width,)."""

    kind = "layer"
    bias: nn.Parameter

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = unset(width)
        self.bias = unset(width)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def _added(self, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return add_layer_norm(rows, x, self.weight, self.bias, self.eps)

    def _multiplied(self, linear: Linear, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return linear_add_layer_norm(
            rows, linear.weight, linear.bias, x, self.weight, self.bias, self.eps
        )


class RMSNorm(_Norm):
    """``x / sqrt(mean(x^2) + eps)`` in float32, rounded to ``x.dtype``, then times ``weight``.

    Zhang and Sennrich 2019; the rounding before the weight is that of T5 and its descendants.
    ``weight``: (width,).
    """

    kind = "rms"

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = unset(width)
        self.register_parameter("bias", None)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def _added(self, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(rows, x, self.weight, self.eps)

    def _multiplied(self, linear: Linear, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return linear_add_rms_norm(rows, linear.weight, linear.bias, x, self.weight, self.eps)
