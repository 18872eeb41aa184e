"""LayerNorm and RMSNorm, each with and without the residual addition before it.

Close: sums over a row run in another order than torch's. All tensors share one dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from ostinato.kernels.norm import reference
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rowwise import as_rows, check_dtypes, check_width

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm"]

_LN = "Tensor? weight, Tensor? bias, float eps"
_RMS = "Tensor? weight, float eps"


def _one(x: torch.Tensor, *rest: object) -> torch.Tensor:
    return x.new_empty(x.shape)


def _two(x: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _register(name: str, schema: str, *, has_residual: bool) -> Any:
    operator = Operator(
        name=name,
        reference=getattr(reference, name),
        kernel=lazy_kernel(__name__, name),
        exactness="close",
        tolerance=getattr(reference, f"{name}_tolerance"),
        rows=("x", "residual") if has_residual else ("x",),
        is_row_invariant=True,
        kernel_takes_out=not has_residual,
        largest=1e15,
    )
    return register(operator, schema, _two if has_residual else _one, out=not has_residual)


_layer_norm = _register("layer_norm", f"(Tensor x, {_LN}) -> Tensor", has_residual=False)
_rms_norm = _register("rms_norm", f"(Tensor x, {_RMS}) -> Tensor", has_residual=False)
_add_layer_norm = _register(
    "add_layer_norm", f"(Tensor x, Tensor residual, {_LN}) -> (Tensor, Tensor)", has_residual=True
)
_add_rms_norm = _register(
    "add_rms_norm", f"(Tensor x, Tensor residual, {_RMS}) -> (Tensor, Tensor)", has_residual=True
)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """LayerNorm over the last axis of ``x`` (..., width); statistics in fp32, one rounding."""
    _check("layer_norm", x, weight=weight, bias=bias)
    result: torch.Tensor = _layer_norm(as_rows(x), weight, bias, eps)
    return result.view(x.shape)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``x / rms(x)`` in fp32, rounded to x's dtype; times ``weight`` (width,), rounded again."""
    _check("rms_norm", x, weight=weight)
    result: torch.Tensor = _rms_norm(as_rows(x), weight, eps)
    return result.view(x.shape)


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(layer_norm(h), h)`` with ``h = x + residual`` rounded once; both of x's shape."""
    _check("add_layer_norm", x, weight=weight, bias=bias, residual=residual)
    y, total = _add_layer_norm(as_rows(x), as_rows(residual), weight, bias, eps)
    return y.view(x.shape), total.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(h), h)`` with ``h = x + residual`` rounded once; both of x's shape."""
    _check("add_rms_norm", x, weight=weight, residual=residual)
    y, total = _add_rms_norm(as_rows(x), as_rows(residual), weight, eps)
    return y.view(x.shape), total.view(x.shape)


def _check(
    name: str,
    x: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    **vectors: torch.Tensor | None,
) -> None:
    check_width(name, x.shape[-1], **vectors)
    check_dtypes(name, x.dtype, {**vectors, "residual": residual})
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"{name}: residual is {tuple(residual.shape)}, expected {tuple(x.shape)}")
