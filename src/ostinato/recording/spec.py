"""What one tensor must look like for a recording to serve it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

ALIGNMENT_BYTES = 16
"""Vectorised kernels read 16 bytes at a time; another alignment may choose another kernel."""


class TensorSpec(NamedTuple):
    """Shape, stride (elements), dtype, device, requires-grad and 16-byte alignment of
    one tensor.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_aligned: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(*describe(tensor))

    @property
    def span(self) -> int:
        """Number of elements from the first to the last one in memory, both counted."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def num_bytes(self) -> int:
        return self.span * self.dtype.itemsize

    def empty(self, device: torch.device | None = None) -> torch.Tensor:
        """New memory with this shape, stride, dtype and alignment; contents undefined.

        A misaligned spec gets a misaligned tensor, so that the same kernels are chosen.
        """
        device = device or self.device
        skip = 0 if self.is_aligned or not self.span else 1
        base = torch.empty(self.span + skip, dtype=self.dtype, device=device)
        return base[skip:].as_strided(self.shape, self.stride, skip)

    def resized(self, sizes: dict[int, int]) -> TensorSpec:
        """The contiguous spec with some dimensions replaced: ``{dimension: size}``."""
        shape = torch.Size(sizes.get(d, n) for d, n in enumerate(self.shape))
        stride, step = [], 1
        for n in reversed(shape):
            stride.append(step)
            step *= max(n, 1)
        return self._replace(shape=shape, stride=tuple(reversed(stride)), is_aligned=True)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        dense = self.stride == self.resized({}).stride
        marks = ("" if dense else f" stride {self.stride}") + (
            " grad" if self.requires_grad else ""
        )
        unaligned = "" if self.is_aligned else " unaligned"
        return f"{str(self.dtype).removeprefix('torch.')}[{shape}] {self.device}{marks}{unaligned}"


def describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The fields of a tensor's spec as a plain tuple, which is equal to the spec and quicker to
    make.
    """
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        not tensor.data_ptr() & 15,
    )
