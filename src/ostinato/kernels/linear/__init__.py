"""Products with their epilogues, by whoever is fastest for the number of rows.

``activation(x @ weight^T + bias)``, and the pair of a residual addition and a norm that follows a
projection. Close: a product's sums run in another order than the library's.
"""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.activations import Activation, check_activation
from ostinato.kernels.linear import reference
from ostinato.kernels.op import Operator, register
from ostinato.kernels.rowwise import as_rows, check_dtypes

__all__ = ["linear", "linear_add_layer_norm", "linear_add_rms_norm"]

AUTO = "auto"
_PRODUCT = "Tensor x, Tensor weight, Tensor? bias"
_LARGEST = 1e3
"""Sums of huge products overflow at places that depend on their order."""


@cache
def _choice() -> Any:
    return import_module("ostinato.kernels.linear.choice")


def _choose(operator: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    named: tuple[Any, ...] | None = _choice().resolve(operator, args)
    return named


def _compute(operator: str, *args: Any) -> Any:
    return _choice().compute(operator, args)


def _one(x: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _two(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *rest: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    return residual.new_empty(residual.shape), residual.new_empty(residual.shape)


def _register(name: str, schema: str, fake: Any, *rows: str) -> Any:
    operator = Operator(
        name=name,
        reference=getattr(reference, name),
        kernel=partial(_compute, name),
        exactness="close",
        tolerance=getattr(reference, f"{name}_tolerance"),
        rows=rows,
        largest=_LARGEST,
        is_row_invariant=True,
        is_timed=False,
        resolve=partial(_choose, name),
    )
    return register(operator, schema, fake)


_linear = _register("linear", f"({_PRODUCT}, str activation, str variant) -> Tensor", _one, "x")
_add_layer_norm = _register(
    "linear_add_layer_norm",
    f"({_PRODUCT}, Tensor residual, Tensor? norm_weight, Tensor? norm_bias, float eps, "
    "str variant) -> (Tensor, Tensor)",
    _two,
    *("x", "residual"),
)
_add_rms_norm = _register(
    "linear_add_rms_norm",
    f"({_PRODUCT}, Tensor residual, Tensor? norm_weight, float eps, str variant) -> "
    "(Tensor, Tensor)",
    _two,
    *("x", "residual"),
)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: Activation | None = None,
) -> torch.Tensor:
    """``activation(x @ weight^T + bias)``, (..., outputs) of x's dtype.

    ``x`` (..., inputs), ``weight`` (outputs, inputs), ``bias`` (outputs,). Whoever is fastest
    computes it: the activation may be applied before the sums are rounded.
    """
    if activation is not None:
        check_activation("linear", activation)
    _check("linear", x, weight, bias)
    rows: torch.Tensor = _linear(as_rows(x), weight, bias, activation or "", AUTO)
    return rows.view(*x.shape[:-1], weight.shape[0])


def linear_add_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(layer_norm(h), h)`` with ``h = residual + (x @ weight^T + bias)``, each rounded once.

    ``x`` (T, inputs), ``weight`` (outputs, inputs), ``residual`` and both results (T, outputs).
    """
    _check("linear_add_layer_norm", x, weight, bias, residual, norm_weight, norm_bias)
    y, total = _add_layer_norm(x, weight, bias, residual, norm_weight, norm_bias, eps, AUTO)
    return y, total


def linear_add_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    norm_weight: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(h), h)``; everything else as in ``linear_add_layer_norm``."""
    _check("linear_add_rms_norm", x, weight, bias, residual, norm_weight)
    y, total = _add_rms_norm(x, weight, bias, residual, norm_weight, eps, AUTO)
    return y, total


def _check(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None = None,
    *norm: torch.Tensor | None,
) -> None:
    if weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ConfigError(
            f"{name}: weight is {tuple(weight.shape)}, expected (outputs, {x.shape[-1]})"
        )
    num_outputs = weight.shape[0]
    for vector in (bias, *norm):
        if vector is not None and tuple(vector.shape) != (num_outputs,):
            raise ConfigError(
                f"{name}: a bias or norm weight is {tuple(vector.shape)}, expected ({num_outputs},)"
            )
    if residual is not None and tuple(residual.shape) != (x.shape[0], num_outputs):
        raise ConfigError(
            f"{name}: residual is {tuple(residual.shape)}, expected {(x.shape[0], num_outputs)}"
        )
    check_dtypes(name, x.dtype, {"weight": weight, "bias": bias, "residual": residual})
