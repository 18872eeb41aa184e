"""Chooses a product's variant by measured time, and computes with the one that is named.

Imported at the first call on a GPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ostinato import state
from ostinato.kernels.card import num_processors_of
from ostinato.kernels.gate import current_numerics
from ostinato.kernels.gelu import triton as _gelu
from ostinato.kernels.linear import triton as _tiled
from ostinato.kernels.linear.variants import EPILOGUE, LIBRARY, candidates, parse, row_class
from ostinato.kernels.norm import triton as _norms
from ostinato.kernels.select import Selector, selector_of

_VARIANT = -1
_MAX_KNOWN = 16_384
_known: dict[tuple[object, ...], tuple[Selector, int, str]] = {}
gelu: Any = _gelu
norms: Any = _norms
tiled: Any = _tiled


def resolve(operator: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The call with its variant named; ``None`` where the eager chain is all there is to do."""
    if args[0].shape[0] == 0:
        return None
    named = (*args[:_VARIANT], _variant(operator, args))
    is_plain = operator == "linear" and not args[3]
    return None if is_plain and named[_VARIANT] == LIBRARY else named


def _variant(operator: str, args: tuple[Any, ...]) -> str:
    if current_numerics() != "fast":
        return LIBRARY
    x, weight, bias = args[:3]
    activation = args[3] if operator == "linear" else ""
    selector = selector_of(x.device)
    form = (operator, x.device, x.dtype, x.shape, weight.shape, activation, bias is None)
    known = _known.get(form)
    if known is not None and known[0] is selector and known[1] == selector.edition:
        return known[2]
    chosen = _choose(operator, args, activation, selector)
    if not state.is_recording():  # else the choice may be a makeshift
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[form] = (selector, selector.edition, chosen)
    return chosen


def _choose(operator: str, args: tuple[Any, ...], activation: str, selector: Selector) -> str:
    x, weight, bias = args[:3]
    names = candidates(
        x.shape[0],
        weight.shape[0],
        weight.shape[1],
        x.dtype,
        num_processors=num_processors_of(x.device),
        has_epilogue=activation == "gelu_tanh" and bias is not None,
    )
    if len(names) == 1:
        return LIBRARY
    shape = "x".join(map(str, (row_class(x.shape[0]), *weight.shape)))
    described = f"{x.dtype} {shape} {activation} {bias is not None}"
    variants = {name: partial(compute, operator, (*args[:_VARIANT], name)) for name in names}
    return selector.choose(operator, described, variants)


def compute(operator: str, args: tuple[Any, ...]) -> Any:
    """The result by the variant that ``args`` end with."""
    variant = args[_VARIANT]
    if operator == "linear":
        return _linear(*args)
    is_rms = operator == "linear_add_rms_norm"
    x, weight, bias, residual, norm_weight, *norm_bias, eps = args[:_VARIANT]
    shift = None if is_rms else norm_bias[0]
    if variant == LIBRARY:
        product = torch.nn.functional.linear(x, weight, bias)
        if is_rms:
            return norms.add_rms_norm(product, residual, norm_weight, eps)
        return norms.add_layer_norm(product, residual, norm_weight, shift, eps)
    return tiled.multiply_add_norm(
        x, weight, bias, residual, norm_weight, shift, eps, parse(variant), is_rms=is_rms
    )


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, variant: str
) -> Any:
    if variant == LIBRARY:
        product = torch.nn.functional.linear(x, weight, bias)
        return gelu.gelu(product, None, activation) if activation else product
    if variant == EPILOGUE:
        assert bias is not None
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return tiled.multiply(x, weight, bias, activation, parse(variant))
