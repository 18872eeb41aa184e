"""The eager chain: split, per-head RMS norm, rotation; each operation rounds to its own dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ostinato.kernels.bounds import units
from ostinato.kernels.norm.reference import rms_norm

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def rope(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    style: str,
    is_v_cleaned: bool,
    is_spaced: bool,
) -> Three:
    q, k, v = split(qkv, heads, kv_heads, head_dim)
    own = cleaned(v) if is_v_cleaned else v.contiguous().clone()
    three = rotate(q, cos, sin, style), rotate(k, cos, sin, style), own
    if not is_spaced:
        return three
    q, k, v = (empty_heads(qkv, x.shape[1], head_dim, is_spaced=True).copy_(x) for x in three)
    return q, k, v


def empty_heads(
    qkv: torch.Tensor, count: int, head_dim: int, *, is_spaced: bool = False
) -> torch.Tensor:
    """(T, count, head_dim), contiguous; spaced, each head begins at a multiple of a power of two
    of channels, and what lies between is nobody's.
    """
    stride = 1 << (head_dim - 1).bit_length() if is_spaced else head_dim
    return qkv.new_empty((qkv.shape[0], count, stride))[..., :head_dim]


def cleaned(v: torch.Tensor) -> torch.Tensor:
    """``v``, contiguous, with zeros for what is not finite."""
    return torch.nan_to_num(v.contiguous(), nan=0.0, posinf=0.0, neginf=0.0)


def norm_rope(
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
) -> Three:
    q, k, v = split(qkv, heads, kv_heads, head_dim)
    q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    return rotate(q, cos, sin, style), rotate(k, cos, sin, style), v.contiguous().clone()


def split(qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int) -> Three:
    """Views (T, n, head_dim) of q, k and v."""
    parts = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    q, k, v = (part.unflatten(1, (-1, head_dim)) for part in parts)
    return q, k, v


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: str) -> torch.Tensor:
    """``x * cos + rotate_half(x) * sin`` per pair, in the promoted dtype, rounded to x's."""
    cos, sin = cos[:, None], sin[:, None]
    if style == "half":
        first, second = x.chunk(2, dim=-1)
    else:
        first, second = x[..., 0::2], x[..., 1::2]
    turned = (first * cos + (-second) * sin, second * cos + first * sin)
    if style == "half":
        return torch.cat(turned, dim=-1).to(x.dtype)
    return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)


def norm_rope_tolerance(
    expected: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> list[torch.Tensor]:
    """Four units of the rotation's two terms before they may cancel; v is bit-exact."""
    qkv, cos, sin, q_weight, k_weight, eps, heads, kv_heads, head_dim, style = args
    q, k, _ = split(qkv, heads, kv_heads, head_dim)
    allowed = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        error = 4 * units(rms_norm(x, weight, eps))
        wide_cos, wide_sin = cos.float().abs()[:, None], sin.float().abs()[:, None]
        terms = _both_terms(error, wide_cos, wide_sin, style)
        allowed.append(terms + units(torch.zeros_like(terms), qkv.dtype))
    return [*allowed, torch.zeros_like(expected[2], dtype=torch.float32)]


def _both_terms(
    size: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: str
) -> torch.Tensor:
    if style == "half":
        first, second = size.chunk(2, dim=-1)
        return torch.cat((first * cos + second * sin, second * cos + first * sin), dim=-1)
    first, second = size[..., 0::2], size[..., 1::2]
    pair = (first * cos + second * sin, second * cos + first * sin)
    return torch.stack(pair, dim=-1).flatten(-2)
