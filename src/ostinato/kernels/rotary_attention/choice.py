"""One kernel or two, by measured time, once for each class of rows and segments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ostinato.kernels.gate import current_numerics
from ostinato.kernels.rotary_attention import triton as _triton
from ostinato.kernels.rotary_attention.reference import rotary_attention
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.segment_attention import availability
from ostinato.kernels.segment_attention.call import Call
from ostinato.kernels.segment_attention.choice import class_text, made_up_offsets, shape_class
from ostinato.kernels.segment_attention.tiles import SHORT
from ostinato.kernels.select import Remembered, selector_of

LONGEST = SHORT[-1]
"""Longer segments have several tiles of keys, which each tile of rows would rotate: 9.8 us for 196
rows of one image on an H200, where two kernels take 8.2."""
TWO, ONE = "two kernels", "one kernel"
_MAX_HEAD_DIM = 128
_FEW_PROGRAMS = 256
"""With fewer than about two for each multiprocessor of a large card, a program takes one head."""
_MAX_HEADS = 8
kernel: Any = _triton
_remembered = Remembered()


def resolve(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """``args`` as the kernel takes them, where it serves; ``None`` where two do.

    The bound is rounded up and the heads of a program are set: kernels and verdicts are as few as
    those.
    """
    if current_numerics() != "fast" or _misfits(*args):
        return None
    qkv, cos, sin, offsets, max_length, heads, scale, _ = args
    longest = next(n for n in SHORT if max_length <= n)
    most_full = min(offsets.shape[0] - 1, ceil_div(qkv.shape[0], SHORT[0]))
    members = heads_per_program(most_full, heads) if longest == SHORT[0] else 1
    one_kernels = (qkv, cos, sin, offsets, longest, heads, scale, members)
    selector = selector_of(qkv.device)
    form = (
        *(qkv.device, qkv.dtype, qkv.shape, qkv.stride(0), qkv.data_ptr() & 15),
        *(offsets.shape, max_length, heads, availability.hidden()),
    )
    chosen = _remembered.get(form, selector)
    if chosen is None:
        width = qkv.shape[1] // 3
        q, k, v = (x.unflatten(1, (heads, -1)) for x in qkv.split(width, dim=1))
        call = Call(q, k, v, offsets, max_length, scale)
        variants = {TWO: partial(_OnMadeUp(args, call), rotary_attention)}
        if "triton" not in availability.hidden():
            variants[ONE] = partial(_OnMadeUp(one_kernels, call), kernel.rotary_attention)
        chosen = selector.choose("rotary_attention", class_text(shape_class(call)), variants)
        _remembered.keep(form, selector, chosen)
    return None if chosen == TWO else one_kernels


@cache
def heads_per_program(num_windows: int, heads: int) -> int:
    """A power of two that divides ``heads`` and leaves enough programs: with 8 of 16 heads, 8192
    rows in windows of 64 take 35.5 us on an H200 instead of 56.2; 1024 rows 34.0 instead of 7.9.

    ``num_windows``: as many as have rows, so that a recording, whose offsets have room for more,
    computes as the direct call does.
    """
    members = 1
    while (
        members < _MAX_HEADS
        and heads % (2 * members) == 0
        and num_windows * heads >= 2 * members * _FEW_PROGRAMS
    ):
        members *= 2
    return members


def _misfits(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor,
    max_length: int,
    heads: int,
    scale: float,
    heads_per_program: int,
) -> bool:
    return (
        qkv.shape[0] == 0
        or qkv.dtype.itemsize != 2
        or qkv.stride(1) != 1
        or qkv.shape[1] // (3 * heads) > _MAX_HEAD_DIM
        or not 0 < max_length <= LONGEST
        or scale < 0
        or cos.dtype != torch.float32
        or cos.stride() != sin.stride()
        or cos.stride(1) != 1
    )


class _OnMadeUp:
    """Calls on segmentations made up from the bounds, at the first call: while recording there is
    none, and no offsets may be sent to the device.
    """

    def __init__(self, args: tuple[Any, ...], call: Call) -> None:
        self._args = args
        self._call = call
        self._offsets: list[Tensor] | None = None

    def __call__(self, attend: Callable[..., Tensor]) -> None:
        if self._offsets is None:
            self._offsets = made_up_offsets(self._call)
        qkv, cos, sin, _, *rest = self._args
        for offsets in self._offsets:
            attend(qkv, cos, sin, offsets, *rest)
