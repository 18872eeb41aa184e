"""Elementwise over a part of a row; what was seen is read only where a penalty is on."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div, power_of_two
from ostinato.kernels.triton_math import divide


@quick
@triton.jit
def penalise_kernel(
    logits_pointer,
    seen_pointer,
    slots_pointer,
    repetition_pointer,
    frequency_pointer,
    presence_pointer,
    out_pointer,
    logits_stride: tl.constexpr,
    vocabulary: tl.constexpr,
    columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    token = tl.program_id(1) * columns + tl.arange(0, columns)
    is_token = token < vocabulary
    x = tl.load(logits_pointer + row * logits_stride + token, mask=is_token, other=0.0)
    x = x.to(tl.float32)
    repetition = tl.load(repetition_pointer + row + one).to(tl.float32)
    frequency = tl.load(frequency_pointer + row + one).to(tl.float32)
    presence = tl.load(presence_pointer + row + one).to(tl.float32)
    is_on = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
    slot = tl.load(slots_pointer + row + one).to(tl.int64)
    seen = tl.load(seen_pointer + slot * vocabulary + token, mask=is_token & is_on, other=0)
    count = seen & 1073741823  # IN_PROMPT - 1
    less = tl.where(x > 0.0, divide(x, tl.broadcast_to(repetition, x.shape)), x * repetition)
    x = tl.where(seen != 0, less, x)
    x = tl.where(count > 0, x - count.to(tl.float32) * frequency - presence, x)
    tl.store(out_pointer + row * vocabulary + token, x, mask=is_token)


def penalise(logits, seen, slots, repetition, frequency, presence):
    rows, vocabulary = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = logits.new_empty((rows, vocabulary), dtype=torch.float32)
    columns = min(2048, power_of_two(vocabulary))
    penalise_kernel[(rows, ceil_div(vocabulary, columns))](
        logits,
        seen,
        *(x.contiguous() for x in (slots, repetition, frequency, presence)),
        out,
        logits_stride=logits.stride(0),
        vocabulary=vocabulary,
        columns=columns,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
