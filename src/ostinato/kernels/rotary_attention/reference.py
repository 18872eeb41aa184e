"""The chain of two operators, each of which is chosen and proven by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ostinato.kernels.examples import values
from ostinato.kernels.rope import rope
from ostinato.kernels.segment_attention import segment_attention
from ostinato.kernels.segment_attention.availability import tolerance as attention_tolerance

_SEVERAL = (5, 0, 64, 1, 130, 33, 0)
_ALONE = (197,)
_MANY = (3, 0, 1) * 24
"""More boundaries than a program reads at once where there are few."""


def rotary_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor,
    max_length: int,
    heads: int,
    scale: float,
    heads_per_program: int,
) -> Tensor:
    # In a pass over v that is made anyway; the attention kernels that need it are for bfloat16.
    is_clean = qkv.dtype == torch.bfloat16
    head_dim = qkv.shape[1] // (3 * heads)
    q, k, v = rope(
        *(qkv, cos, sin),
        heads=heads,
        head_dim=head_dim,
        is_v_cleaned=is_clean,
        is_spaced=qkv.is_cuda and qkv.dtype.itemsize == 2,
    )
    rows = segment_attention(q, k, v, offsets, max_length, scale=scale, is_v_finite=is_clean)
    return rows.flatten(1)


def tolerance(expected: Sequence[Tensor], args: tuple[Any, ...]) -> list[Tensor]:
    """Twice ``segment_attention``'s: the kernel and the chain may each be as far away."""
    q, k, v = args[0].chunk(3, dim=1)
    return [2 * allowed for allowed in attention_tolerance(expected, (q, k, v))]


def examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Segments of 0, 1 and odd lengths, as long as ``max_length`` lets them be, one alone, many.

    In the fifth a whole segment is NaN; it must show there and nowhere else.
    """
    qkv, cos, _, _, max_length, *others = args
    several = [(size, _SEVERAL) for size in (1.0, 6.0, 1e-3, 0.0, 1.0)]
    for number, (size, wanted) in enumerate((*several, (1.0, _ALONE), (1.0, _MANY))):
        lengths = [min(length, max_length) for length in wanted]
        ends = torch.tensor(lengths, device=qkv.device).cumsum(0)
        offsets = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
        parts = values("normal", (sum(lengths), 3, qkv.shape[1] // 3), qkv, seed=number)
        parts[:, 0] *= size
        if number == 4:
            begin = sum(lengths[:4])
            parts[begin : begin + lengths[4]] = torch.nan
        angles = 3 * values("normal", (sum(lengths), cos.shape[1]), cos, seed=7)
        tables = (angles.cos(), angles.sin())
        yield (parts.flatten(1), *tables, offsets, max_length, *others)
