"""Bias and activation on a projection's result. Bit-exact: one operation per rounding, no sums."""

from __future__ import annotations

import torch

from ostinato.kernels.activations import Activation, check_activation
from ostinato.kernels.gelu import reference
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rowwise import as_rows, check_dtypes, check_width

__all__ = ["gelu"]


def _fake(x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return x.new_empty(x.shape)


_SCHEMA = "(Tensor x, Tensor? bias, str activation) -> Tensor"
_gelu = register(
    Operator(
        name="gelu",
        reference=reference.gelu,
        kernel=lazy_kernel(__name__, "gelu"),
        exactness="bit-exact",
        rows=("x",),
    ),
    _SCHEMA,
    _fake,
    out=True,
)
_gelu_erf = register(
    Operator(
        name="gelu_erf",
        reference=reference.gelu,
        kernel=lazy_kernel(__name__, "gelu_erf"),
        exactness="close",
        tolerance=reference.erf_tolerance,
        rows=("x",),
        is_row_invariant=True,
    ),
    _SCHEMA,
    _fake,
    out=True,
)


def gelu(
    x: torch.Tensor, bias: torch.Tensor | None = None, *, activation: Activation = "gelu_tanh"
) -> torch.Tensor:
    """``activation(x + bias)`` of x's shape (..., width) and dtype; ``bias`` is (width,)."""
    check_activation("gelu", activation)
    check_width("gelu", x.shape[-1], bias=bias)
    check_dtypes("gelu", x.dtype, {"bias": bias})
    operator = _gelu_erf if activation == "gelu_erf" else _gelu
    result: torch.Tensor = operator(as_rows(x), bias, activation)
    return result.view(x.shape)
