"""Rotates q and k of a packed QKV projection and attends within segments.

One kernel for both where segments are short and that is faster, as measured; else ``rope`` and then
``segment_attention`` by its fastest backend. Close: see ``segment_attention``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rotary_attention import reference

__all__ = ["rotary_attention"]


@cache
def _choice() -> Any:
    return import_module("ostinato.kernels.rotary_attention.choice")


def _resolve(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    resolved: tuple[Any, ...] | None = _choice().resolve(args)
    return resolved


def _fake(qkv: Tensor, *others: object) -> Tensor:
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // 3))


_rotary_attention = register(
    Operator(
        name="rotary_attention",
        reference=reference.rotary_attention,
        kernel=lazy_kernel(__name__, "rotary_attention"),
        exactness="close",
        tolerance=reference.tolerance,
        rows=("qkv", "cos", "sin", "offsets"),
        examples=reference.examples,
        options=(("enable_fp_fusion", True),),
        is_timed=False,
        resolve=_resolve,
    ),
    "(Tensor qkv, Tensor cos, Tensor sin, Tensor offsets, int max_length, int heads, float scale,"
    " int heads_per_program) -> Tensor",
    _fake,
)


def rotary_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor,
    max_length: int,
    *,
    heads: int,
    scale: float,
) -> Tensor:
    """(T, heads * head_dim), contiguous: softmax attention inside each segment, after rotation.

    ``qkv`` (T, 3 * heads * head_dim) is laid out [q | k | v], heads outermost; ``cos`` and ``sin``
    (T, head_dim / 2) hold each angle once, channel i pairs with i + head_dim / 2 (``rope``).
    ``offsets`` (segments + 1,) int32 and ``max_length`` are ``segment_attention``'s, which also
    tells what becomes of NaN. Raises ``ConfigError`` for shapes and dtypes that cannot be.
    """
    _check(qkv, cos, sin, offsets, heads)
    result: Tensor = _rotary_attention(qkv, cos, sin, offsets, max_length, heads, scale, 1)
    return result


def _check(qkv: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor, heads: int) -> None:
    if qkv.dim() != 2 or heads < 1 or qkv.shape[1] % (6 * heads):
        raise ConfigError(
            f"rotary_attention: qkv is {tuple(qkv.shape)} for {heads} heads, "
            "expected (T, 3 * heads * head_dim) with an even head_dim"
        )
    expected = (qkv.shape[0], qkv.shape[1] // (6 * heads))
    for name, table in (("cos", cos), ("sin", sin)):
        if tuple(table.shape) != expected or table.dtype != cos.dtype:
            raise ConfigError(
                f"rotary_attention: {name} is {tuple(table.shape)} {table.dtype}, "
                f"expected {expected} {cos.dtype}"
            )
    if offsets.dim() != 1 or offsets.shape[0] < 2 or offsets.dtype != torch.int32:
        raise ConfigError(
            "rotary_attention: offsets must be int32 with at least two entries, "
            f"got {offsets.dtype} {tuple(offsets.shape)}"
        )
