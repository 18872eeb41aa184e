"""Concatenates 2x2 neighbouring patches, odd edges padded with zeros. Bit-exact: a copy."""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.patch_merge import reference

__all__ = ["patch_merge"]


def _fake(x: torch.Tensor) -> torch.Tensor:
    frames, height, width, channels = x.shape
    return x.new_empty((frames, (height + 1) // 2, (width + 1) // 2, 4 * channels))


_patch_merge = register(
    Operator(
        name="patch_merge",
        reference=reference.patch_merge,
        kernel=lazy_kernel(__name__, "patch_merge"),
        exactness="bit-exact",
        rows=("x",),
    ),
    "(Tensor x) -> Tensor",
    _fake,
    out=True,
)


def patch_merge(x: torch.Tensor) -> torch.Tensor:
    """(frames, ceil(H / 2), ceil(W / 2), 4 * C) from ``x`` (frames, H, W, C) of any dtype.

    Neighbours stand in the order (0,0), (0,1), (1,0), (1,1) as (row, column).
    """
    if x.dim() != 4:
        raise ConfigError(f"patch_merge: x is {tuple(x.shape)}, expected (frames, H, W, C)")
    result: torch.Tensor = _patch_merge(x)
    return result
