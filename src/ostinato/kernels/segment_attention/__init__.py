"""Attention within segments of a packed sequence: one opaque operator with an ``out`` form.

Vision towers pack images, frames and windows into one sequence; a row attends to the rows of its
own segment only. The boundaries are data: they are read on the device, so that one recording
serves every segmentation that fits ``max_length`` and the capacity of ``offsets``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ostinato.kernels.segment_attention.reference import segment_attention_reference

BACKENDS = ("auto", "varlen", "sdpa", "cudnn", "fa3", "cudnn_ragged", "triton", "masked")
"""``auto`` is the fastest as measured on the machine (``choice.py``); the CPU computes the
reference for all of them.
"""

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor offsets, int max_length, float scale, str backend, "
    "bool is_v_finite"
)
_make_library: Any = torch.library.Library
_library = _make_library("ostinato", "FRAGMENT")
_library.define(f"segment_attention({_ARGUMENTS}) -> Tensor")
_library.define(f"segment_attention.out({_ARGUMENTS}, *, Tensor(a!) out) -> ()")


def segment_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    max_length: int,
    *,
    scale: float,
    out: Tensor | None = None,
    backend: str = "auto",
    is_v_finite: bool = False,
) -> Tensor:
    """Softmax attention inside each segment, no mask, no dropout.

    ``q``, ``k``, ``v``: (T, heads, head_dim), one floating dtype, any strides with the last
    dimension contiguous. ``offsets``: (segments + 1,) int32 on the same device, from 0 to T,
    never decreasing; equal neighbours are a segment without rows. ``max_length``: an upper bound
    of every segment's length; it is baked into a recording. Every row belongs to a segment, and
    every row of the result is written. Some backends read rows of the next segment with weight 0,
    where NaN would show; ``is_v_finite`` tells that ``v`` holds none and no infinity, which spares
    them a cleaned copy.

    Returns ``out`` if it was given (same shape and dtype as ``q``), else a new contiguous tensor.
    Raises ``ValueError`` for shapes, dtypes and backends that cannot be; wrong offsets are noticed
    on the CPU only.
    """
    _check(q, k, v, offsets, max_length, backend)
    if out is None:
        result: Tensor = torch.ops.ostinato.segment_attention.default(
            q, k, v, offsets, max_length, scale, backend, is_v_finite
        )
        return result
    if out.shape != q.shape or out.dtype != q.dtype:
        raise ValueError(
            f"out must be {tuple(q.shape)} {q.dtype}, got {tuple(out.shape)} {out.dtype}"
        )
    torch.ops.ostinato.segment_attention.out(
        q, k, v, offsets, max_length, scale, backend, is_v_finite, out=out
    )
    return out


def _check(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, backend: str) -> None:
    if q.dim() != 3 or k.shape != q.shape or v.shape != q.shape:
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise ValueError(f"q, k and v must have one shape (rows, heads, head_dim), got {shapes}")
    if not q.dtype.is_floating_point or k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(
            f"q, k and v must have one floating dtype, got {[x.dtype for x in (q, k, v)]}"
        )
    if offsets.dim() != 1 or offsets.shape[0] < 2 or offsets.dtype != torch.int32:
        raise ValueError(
            f"offsets must be int32 with at least two entries, "
            f"got {offsets.dtype} {tuple(offsets.shape)}"
        )
    if max_length < 0:
        raise ValueError(f"max_length must not be negative, got {max_length}")
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def _cpu(q: Tensor, *others: Any) -> Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _cpu_out(q, *others, out=out)
    return out


def _cpu_out(q: Tensor, *others: Any, out: Tensor) -> None:
    k, v, offsets, max_length, scale, *_ = others
    segment_attention_reference(q, k, v, offsets, max_length, scale, out)


def _cuda(*arguments: Any) -> Tensor:
    from ostinato.kernels.segment_attention import cuda

    return cuda.attend(*arguments)


def _cuda_out(*arguments: Any, out: Tensor) -> None:
    from ostinato.kernels.segment_attention import cuda

    cuda.attend(*arguments, out=out)


def _fake(q: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _fake_out(*arguments: Any, out: Tensor) -> None:
    return None


_library.impl("segment_attention", _cpu, "CPU")
_library.impl("segment_attention.out", _cpu_out, "CPU")
_library.impl("segment_attention", _cuda, "CUDA")
_library.impl("segment_attention.out", _cuda_out, "CUDA")
torch.library.register_fake("ostinato::segment_attention", _fake, lib=_library)
torch.library.register_fake("ostinato::segment_attention.out", _fake_out, lib=_library)
