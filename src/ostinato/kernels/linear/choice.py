"""Chooses a product's variant by measured time, and computes with the one that is named.

Imported at the first call on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Any

import torch

from ostinato.kernels.card import cache_bytes_of, num_processors_of
from ostinato.kernels.gate import current_numerics
from ostinato.kernels.gelu import triton as _gelu
from ostinato.kernels.linear import triton as _tiled
from ostinato.kernels.linear.variants import (
    EPILOGUE,
    LIBRARY,
    candidates,
    num_parts,
    parse,
    row_class,
)
from ostinato.kernels.norm import triton as _norms
from ostinato.kernels.select import Remembered, Selector, selector_of

_VARIANT = -1
_MAX_COPIES = 16
_remembered = Remembered()
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
    chosen = _remembered.get(form, selector)
    if chosen is None:
        chosen = _choose(operator, args, activation, selector)
        _remembered.keep(form, selector, chosen)
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
        is_summed=operator != "linear",
    )
    if len(names) == 1:
        return LIBRARY
    shape = "x".join(map(str, (row_class(x.shape[0]), *weight.shape)))
    described = f"{x.dtype} {shape} {activation} {bias is not None}"
    cold = _Cold(operator, args)
    return selector.choose(operator, described, {name: partial(cold, name) for name in names})


class _Cold:
    """Calls of one product that find its weight in memory, not in the cache, as a model's do, where
    other layers' weights come between: copies take turns. Fewer of them where memory is short.
    """

    def __init__(self, operator: str, args: tuple[Any, ...]) -> None:
        self._operator = operator
        self._args = args
        self._weights: Iterator[torch.Tensor] | None = None

    def __call__(self, name: str) -> Any:
        x, weight, *rest = self._args[:_VARIANT]
        if self._weights is None:  # at the first call: while recording there is none
            self._weights = cycle(self._copies(weight))
        return compute(self._operator, (x, next(self._weights), *rest, name))

    @staticmethod
    def _copies(weight: torch.Tensor) -> list[torch.Tensor]:
        num_bytes = max(1, weight.numel() * weight.element_size())
        num_copies = min(_MAX_COPIES, cache_bytes_of(weight.device) * 5 // 4 // num_bytes)
        weights = [weight]
        with suppress(torch.OutOfMemoryError):
            weights += [weight.clone() for _ in range(num_copies)]
        return weights


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
    split = num_parts(variant)
    parts = (
        tiled.parts_of_batch(x, weight, split)
        if split
        else tiled.parts_of_tiles(x, weight, parse(variant))
    )
    return tiled.sum_add_norm(
        parts, bias, residual, norm_weight, shift, eps, dtype=x.dtype, is_rms=is_rms
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
