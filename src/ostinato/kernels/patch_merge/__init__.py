"""Concatenates 2x2 neighbouring patches, odd edges padded with zeros. Bit-exact: a copy."""

from __future__ import annotations

from typing import Any

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, register
from ostinato.kernels.patch_merge import reference

__all__ = ["patch_merge"]


def _kernel(*args: Any, out: torch.Tensor | None = None) -> Any:
    from ostinato.kernels.patch_merge import triton

    return triton.patch_merge(*args)


def _fake(x: torch.Tensor) -> torch.Tensor:
    frames, height, width, channels = x.shape
    return x.new_empty((frames, (height + 1) // 2, (width + 1) // 2, 4 * channels))


_patch_merge = register(
    Operator(
        name="patch_merge",
        reference=reference.patch_merge,
        kernel=_kernel,
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
