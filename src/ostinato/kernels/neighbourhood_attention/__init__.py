"""Attention of every cell of a grid to the window around it (5x5 in the video VAE).

Close: online softmax and another order of summation.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.neighbourhood_attention import reference
from ostinato.kernels.op import Operator, lazy_kernel, register

__all__ = ["neighbourhood_attention"]


def _fake(q: torch.Tensor, *rest: object) -> torch.Tensor:
    return q.new_empty(q.shape)


_attend = register(
    Operator(
        name="neighbourhood_attention",
        reference=reference.neighbourhood_attention,
        kernel=lazy_kernel(__name__, "neighbourhood_attention"),
        exactness="close",
        tolerance=reference.tolerance,
        rows=("q", "k", "v"),
        examples=reference.examples,
        is_row_invariant=True,
        options=(("enable_fp_fusion", True),),
    ),
    "(Tensor q, Tensor k, Tensor v, int window, float scale) -> Tensor",
    _fake,
    out=True,
)


def neighbourhood_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int = 5, scale: float
) -> torch.Tensor:
    """(frames, H, W, heads, head_dim) of q's dtype, contiguous.

    q, k and v (frames, H, W, heads, head_dim) may be views of one projection. A cell attends to
    ``window`` x ``window`` keys of its own frame; at a border the window shifts inward and never
    shrinks; on an axis shorter than ``window`` it is the whole axis.
    """
    if q.dim() != 5 or k.shape != q.shape or v.shape != q.shape:
        raise ConfigError(
            f"neighbourhood_attention: q, k, v are {tuple(q.shape)}, {tuple(k.shape)}, "
            f"{tuple(v.shape)}, expected three equal (frames, H, W, heads, head_dim)"
        )
    if window < 1 or window % 2 == 0:
        raise ConfigError(f"neighbourhood_attention: window is {window}, expected an odd number")
    result: torch.Tensor = _attend(q, k, v, window, scale)
    return result
