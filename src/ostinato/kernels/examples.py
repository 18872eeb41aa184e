"""Adversarial inputs for the gate: huge, tiny, denormal, equal, -0.0, infinite and NaN rows.

They keep the shape, strides, dtype and 16-byte alignment of the call they stand for. Integer and
boolean arguments keep their values: an invented index would be an illegal address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

PATTERNS = (
    "normal",
    "huge",
    "tiny",
    "denormal",
    "equal",
    "negative zero",
    "wide",
    "infinite",
    "not a number",
    "one infinity",
)
_HUGE = 1e30
_LARGEST = {torch.float16: 1e4}
_TINY = {torch.float16: 1e-6}
MAX_ROWS = 512


def adversarial(
    args: Sequence[Any],
    row_flags: Sequence[bool],
    *,
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    huge: float = _HUGE,
) -> Iterator[tuple[Any, ...]]:
    """One argument list per pattern.

    In the k-th list, row r of a row argument shows pattern k + r, so that every program of a kernel
    sees neighbours of another kind; a floating tensor without rows (a weight) is ordinary in every
    other list and shows pattern k otherwise.
    """
    for k in range(len(PATTERNS)):
        filled = []
        for position, (value, has_rows) in enumerate(zip(args, row_flags, strict=True)):
            if not isinstance(value, torch.Tensor):
                filled.append(value)
                continue
            small = value[:max_rows] if has_rows else value
            if not value.dtype.is_floating_point:
                filled.append(like(small, small))
            elif has_rows:
                filled.append(
                    like(small, by_rows(small, first=k, seed=seed + 31 * k + position, huge=huge))
                )
            else:
                pattern = 0 if k % 2 == 0 else k
                whole = values(
                    PATTERNS[pattern], tuple(small.shape), small, seed=seed + position, huge=huge
                )
                filled.append(like(small, whole))
        yield tuple(filled)


def like(template: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    """``content`` in new memory with the strides and the 16-byte alignment of ``template``.

    Where ``template`` overlaps itself (an expanded tensor), the copy is written through its
    distinct part only.
    """
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(template.shape, template.stride(), strict=True))
    step = max(1, 16 // template.element_size())
    offset = (template.data_ptr() % 16) // template.element_size()
    memory = template.new_zeros(step * (span // step + 3) if template.numel() else step)
    lead = (offset - (memory.data_ptr() % 16) // template.element_size()) % step
    copy = memory.as_strided(template.shape, template.stride(), lead)
    distinct = tuple(slice(0, 1) if s == 0 else slice(None) for s in template.stride())
    copy[distinct].copy_(content[distinct])
    return copy


def by_rows(template: torch.Tensor, *, first: int, seed: int, huge: float = _HUGE) -> torch.Tensor:
    """A tensor of ``template``'s shape whose row r shows pattern ``first + r``."""
    result = torch.empty(template.shape, dtype=template.dtype, device=template.device)
    n = len(PATTERNS)
    for r in range(min(n, template.shape[0])):
        rows = result[r::n]
        pattern = PATTERNS[(first + r) % n]
        rows.copy_(values(pattern, tuple(rows.shape), template, seed=seed + r, huge=huge))
    return result


def values(
    pattern: str, shape: tuple[int, ...], like: torch.Tensor, *, seed: int, huge: float = _HUGE
) -> torch.Tensor:
    """A contiguous tensor of one pattern with ``like``'s dtype and device."""
    generator = torch.Generator(device=like.device).manual_seed(seed)
    noise = torch.randn(shape, generator=generator, device=like.device, dtype=torch.float32)
    scale = {
        "huge": min(huge, _LARGEST.get(like.dtype, huge)),
        "tiny": _TINY.get(like.dtype, 1e-30),
        "denormal": torch.finfo(like.dtype).tiny * 0.25,
    }
    if pattern in scale:
        return (noise * scale[pattern]).to(like.dtype)
    if pattern == "wide":
        spread = 4.0 if like.dtype is torch.float16 else 20.0
        return (noise.sign() * torch.exp(noise * spread).clamp_max(1e4)).to(like.dtype)
    result = noise.to(like.dtype)
    sparse = torch.rand(shape, generator=generator, device=like.device)
    if pattern == "equal":
        result.fill_(1.5)
    elif pattern == "negative zero":
        result = torch.where(sparse < 0.5, torch.zeros_like(result), -torch.zeros_like(result))
    elif pattern == "infinite":
        result = torch.where(
            sparse < 0.05, torch.copysign(result.new_tensor(torch.inf), result), result
        )
    elif pattern == "not a number":
        result = torch.where(sparse < 0.02, result.new_tensor(torch.nan), result)
    elif pattern == "one infinity" and result.numel():
        result.view(-1)[result.numel() // 2] = torch.inf
    return result
