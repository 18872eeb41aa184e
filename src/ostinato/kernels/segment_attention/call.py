"""One call of segment attention, and what a backend has to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

Capability = tuple[int, int]


class Call(NamedTuple):
    """Arguments of ``segment_attention``, checked; ``q`` has at least one row."""

    q: Tensor
    k: Tensor
    v: Tensor
    offsets: Tensor
    max_length: int
    scale: float
    is_v_finite: bool = False

    @property
    def num_segments(self) -> int:
        """Capacity: segments without rows count."""
        return self.offsets.shape[0] - 1


def always(call: Call) -> str:
    """A backend that takes every shape."""
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """One way to compute segment attention on CUDA; none reads a device value on the host.

    ``attend(call, out)`` returns the result: ``out`` where it wrote into it, else a new tensor.
    ``misfit(call)`` says from shapes, strides and dtypes why it cannot, or "". ``capabilities``:
    cards that it is known to have kernels for, ``None`` for all that torch itself runs on.
    ``package``: the distribution that has to be installed and ``module`` what it imports as.
    ``is_probed``: it has to prove itself on small inputs before it is chosen. ``is_candidate``:
    it is worth timing where it is not the steady one.
    """

    name: str
    attend: Callable[[Call, Tensor | None], Tensor]
    misfit: Callable[[Call], str] = always
    capabilities: frozenset[Capability] | None = None
    package: str | None = None
    module: str | None = None
    is_probed: bool = True
    is_candidate: bool = True


def is_aligned(x: Tensor) -> bool:
    """Whether address and strides are multiples of 16 bytes, as copies by tiles want them."""
    step = 16 // x.element_size()
    return x.data_ptr() % 16 == 0 and x.stride(0) % step == 0 and x.stride(1) % step == 0


def half_misfit(call: Call, *, max_head_dim: int, step: int = 1) -> str:
    """Why a kernel for 16-bit floats and heads of a multiple of ``step`` cannot serve, or ""."""
    head_dim = call.q.shape[2]
    if call.q.dtype.itemsize != 2:
        return f"needs float16 or bfloat16, got {call.q.dtype}"
    if head_dim > max_head_dim or head_dim % step:
        multiple = f" in steps of {step}" if step > 1 else ""
        return f"needs head_dim <= {max_head_dim}{multiple}, got {head_dim}"
    return ""


def one_segment_misfit(call: Call) -> str:
    """Dense attention is right for one segment only."""
    if call.num_segments != 1:
        return f"needs one segment, offsets hold {call.num_segments}"
    return ""
