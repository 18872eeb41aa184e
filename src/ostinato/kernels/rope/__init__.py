"""Splits a packed QKV projection, normalises heads where asked, and rotates q and k: one pass.

Bit-exact without the per-head RMS norm, close with it (its sums run in another order).
"""

from __future__ import annotations

from typing import Literal

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rope import reference

__all__ = ["Style", "rope"]

Style = Literal["half", "adjacent"]
_SIZES = "int heads, int kv_heads, int head_dim, str style"
_THREE = "(Tensor, Tensor, Tensor)"


def _shapes(
    qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, *, is_spaced: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def empty(count: int) -> torch.Tensor:
        return reference.empty_heads(qkv, count, head_dim, is_spaced=is_spaced)

    return empty(heads), empty(kv_heads), empty(kv_heads)


def _rope_fake(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    style: str,
    is_v_cleaned: bool,
    is_spaced: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _shapes(qkv, heads, kv_heads, head_dim, is_spaced=is_spaced)


def _norm_rope_fake(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
    heads: int,
    kv_heads: int,
    head_dim: int,
    style: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _shapes(qkv, heads, kv_heads, head_dim)


_rope = register(
    Operator(
        name="rope",
        reference=reference.rope,
        kernel=lazy_kernel(__name__, "rope"),
        exactness="bit-exact",
        rows=("qkv", "cos", "sin"),
    ),
    f"(Tensor qkv, Tensor cos, Tensor sin, {_SIZES}, bool is_v_cleaned, bool is_spaced)"
    f" -> {_THREE}",
    _rope_fake,
)
_norm_rope = register(
    Operator(
        name="norm_rope",
        reference=reference.norm_rope,
        kernel=lazy_kernel(__name__, "norm_rope"),
        exactness="close",
        tolerance=reference.norm_rope_tolerance,
        rows=("qkv", "cos", "sin"),
        is_row_invariant=True,
        largest=1e15,
    ),
    "(Tensor qkv, Tensor cos, Tensor sin, Tensor? q_weight, Tensor? k_weight, float eps, "
    f"{_SIZES}) -> {_THREE}",
    _norm_rope_fake,
)


def rope(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    style: Style = "half",
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float | None = None,
    is_v_cleaned: bool = False,
    is_spaced: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (T, heads, head_dim), k and v (T, kv_heads, head_dim), contiguous, of ``qkv``'s dtype.

    ``qkv`` (T, (heads + 2 * kv_heads) * head_dim) is laid out [q | k | v], heads outermost.
    ``cos`` and ``sin`` (T, head_dim / 2) hold each angle once; style ``"half"`` pairs channel i
    with i + head_dim / 2, ``"adjacent"`` 2i with 2i + 1. Arithmetic runs in the promoted dtype of
    qkv and table, one rounding per operation: fp32 tables round once at the end. With ``eps``, q
    and k are RMS-normalised per head first and multiplied by ``q_weight`` and ``k_weight``
    (head_dim,). Not with ``eps``: with ``is_v_cleaned`` v comes with zeros for what is not finite,
    see ``segment_attention``; with ``is_spaced`` each head of all three begins at a multiple of a
    power of two of channels, where attention reads heads of 72 and 80 faster.
    """
    kv = heads if kv_heads is None else kv_heads
    _check(qkv, cos, sin, (heads + 2 * kv) * head_dim, head_dim, style)
    if eps is None:
        if q_weight is not None or k_weight is not None:
            raise ConfigError("rope: a norm weight without eps; give eps to normalise the heads")
        result = _rope(qkv, cos, sin, heads, kv, head_dim, style, is_v_cleaned, is_spaced)
    else:
        if is_v_cleaned or is_spaced:
            name = "is_v_cleaned" if is_v_cleaned else "is_spaced"
            raise ConfigError(f"rope: {name} with eps; expected one of them")
        result = _norm_rope(qkv, cos, sin, q_weight, k_weight, eps, heads, kv, head_dim, style)
    q, k, v = result
    return q, k, v


def _check(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, width: int, head_dim: int, style: str
) -> None:
    if style not in ("half", "adjacent"):
        raise ConfigError(f"rope: style is {style!r}, expected 'half' or 'adjacent'")
    if qkv.dim() != 2 or qkv.shape[1] != width:
        raise ConfigError(f"rope: qkv is {tuple(qkv.shape)}, expected (T, {width})")
    expected = (qkv.shape[0], head_dim // 2)
    for name, table in (("cos", cos), ("sin", sin)):
        if tuple(table.shape) != expected or table.dtype != cos.dtype:
            raise ConfigError(
                f"rope: {name} is {tuple(table.shape)} {table.dtype}, "
                f"expected {expected} {cos.dtype}"
            )
