"""Per-row E4M3 quantisation, alone and behind a norm, a modulation or an activation.

Every operator returns ``(values, scales)``: values (R, width) of ``torch.float8_e4m3fn`` and scales
(R, 1) of fp32 with ``x ~ values * scales``, R being the row count rounded up to 16; rows beyond the
input are zero with scale 1e-12. ``scale = max(amax * fp32(1 / 448), 1e-12)``. Bit-exact alone
and after swiglu, close after a norm and after gelu, whose tanh is a sigmoid here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.activations import Activation, check_activation
from ostinato.kernels.fp8 import reference
from ostinato.kernels.modulate import check_segments
from ostinato.kernels.op import Operator, Tolerance, lazy_kernel, register
from ostinato.kernels.rowwise import as_rows, check_dtypes, check_width

__all__ = [
    "add_norm_quantize",
    "gelu_quantize",
    "modulate_quantize",
    "norm_quantize",
    "quantize",
    "swiglu_quantize",
]

Quantised = tuple[torch.Tensor, torch.Tensor]
Norm = Literal["layer", "rms"]


def _register(
    name: str,
    arguments: str,
    *,
    rows: tuple[str, ...] = ("x",),
    tolerance: Tolerance | None = None,
    largest: float = 1e30,
    has_total: bool = False,
    halves: bool = False,
) -> Callable[..., Any]:
    def fake(x: torch.Tensor, *rest: object) -> tuple[torch.Tensor, ...]:
        multiple = reference.ROW_MULTIPLE
        rows = (x.shape[0] + multiple - 1) // multiple * multiple
        width = x.shape[1] // 2 if halves else x.shape[1]
        values = x.new_empty((rows, width), dtype=reference.DTYPE)
        scales = x.new_empty((rows, 1), dtype=torch.float32)
        return (values, scales, x.new_empty(x.shape)) if has_total else (values, scales)

    operator = Operator(
        name=name,
        reference=getattr(reference, name),
        kernel=lazy_kernel(__name__, name),
        exactness="bit-exact" if tolerance is None else "close",
        tolerance=tolerance,
        rows=rows,
        is_row_invariant=True,
        largest=largest,
    )
    results = "(Tensor, Tensor, Tensor)" if has_total else "(Tensor, Tensor)"
    return register(operator, f"({arguments}) -> {results}", fake)


_NORM = "Tensor? weight, Tensor? bias, float eps, str kind"
_ACTIVATION = "Tensor? bias, str activation"
_SUMS: dict[str, Any] = {"tolerance": reference.tolerance, "largest": 1e15}
_quantize = _register("fp8_quantize", "Tensor x")
_norm = _register("fp8_norm", f"Tensor x, {_NORM}", **_SUMS)
_add_norm = _register(
    "fp8_add_norm",
    f"Tensor x, Tensor residual, {_NORM}",
    rows=("x", "residual"),
    **_SUMS,
    has_total=True,
)
_modulate = _register(
    "fp8_modulate",
    "Tensor x, Tensor scale, Tensor shift, Tensor? segments, float eps",
    rows=("x", "segments"),
    **_SUMS,
)
_gelu = _register("fp8_gelu", f"Tensor x, {_ACTIVATION}", tolerance=reference.gelu_tolerance)
_swiglu = _register("fp8_swiglu", f"Tensor packed, {_ACTIVATION}", rows=("packed",), halves=True)


def quantize(x: torch.Tensor) -> Quantised:
    """Quantise the rows of ``x`` (..., width), bf16, fp16 or fp32."""
    values, scales = _quantize(as_rows(x))
    return values, scales


def norm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    kind: Norm,
) -> Quantised:
    """Quantise ``layer_norm(x)`` or ``rms_norm(x)``, rounded to x's dtype first."""
    _check_norm("norm_quantize", x, weight, bias, kind)
    values, scales = _norm(as_rows(x), weight, bias, eps, kind)
    return values, scales


def add_norm_quantize(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    *,
    kind: Norm,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(values, scales, h)`` of the norm of ``h = x + residual``; h has x's shape and dtype."""
    _check_norm("add_norm_quantize", x, weight, bias, kind)
    check_dtypes("add_norm_quantize", x.dtype, {"residual": residual})
    if residual.shape != x.shape:
        raise ConfigError(
            f"add_norm_quantize: residual is {tuple(residual.shape)}, expected {tuple(x.shape)}"
        )
    values, scales, total = _add_norm(as_rows(x), as_rows(residual), weight, bias, eps, kind)
    return values, scales, total.view(x.shape)


def modulate_quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    segments: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> Quantised:
    """Quantise ``modulate(x, scale, shift)``; arguments as there."""
    rows = as_rows(x)
    check_segments("modulate_quantize", rows, segments, scale=scale, shift=shift)
    values, scales = _modulate(rows, scale, shift, segments, eps)
    return values, scales


def gelu_quantize(
    x: torch.Tensor, bias: torch.Tensor | None = None, *, activation: Activation = "gelu_tanh"
) -> Quantised:
    """Quantise ``gelu(x, bias)``, rounded to x's dtype first."""
    _check_activation("gelu_quantize", x, bias, activation)
    values, scales = _gelu(as_rows(x), bias, activation)
    return values, scales


def swiglu_quantize(
    packed: torch.Tensor, bias: torch.Tensor | None = None, *, activation: Activation = "silu"
) -> Quantised:
    """Quantise ``swiglu(packed, bias)``, which rounds twice before; values are half as wide."""
    _check_activation("swiglu_quantize", packed, bias, activation)
    if packed.shape[-1] % 2:
        raise ConfigError(f"swiglu_quantize: packed is {tuple(packed.shape)}, expected even width")
    values, scales = _swiglu(as_rows(packed), bias, activation)
    return values, scales


def _check_norm(
    name: str, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, kind: str
) -> None:
    if kind not in ("layer", "rms") or (kind == "rms" and bias is not None):
        raise ConfigError(f"{name}: kind is {kind!r}, expected 'layer', or 'rms' without a bias")
    check_width(name, x.shape[-1], weight=weight, bias=bias)
    check_dtypes(name, x.dtype, {"weight": weight, "bias": bias})


def _check_activation(
    name: str, x: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> None:
    check_activation(name, activation)
    check_width(name, x.shape[-1], bias=bias)
    check_dtypes(name, x.dtype, {"bias": bias})
