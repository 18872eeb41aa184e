"""One program per row. A threshold is found digit by digit over the bits of an ordered float.

Logits over temperature are written down once, and so is what each token weighs; top-k and top-p
then read the row sixteen times each, two bits a time, and add up lane by lane. The cache holds it.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import power_of_two
from ostinato.kernels.triton_math import divide, exp, is_nan, log


@triton.jit
def _load(row_pointer, begin, vocabulary: tl.constexpr, columns: tl.constexpr, temperature):
    """Logits over temperature in fp32, -inf for NaN and beyond the vocabulary."""
    token = begin + tl.arange(0, columns)
    x = tl.load(row_pointer + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    x = divide(x, tl.broadcast_to(temperature, x.shape))
    return tl.where(is_nan(x), float("-inf"), x)


@triton.jit
def _relative(x, largest):
    """exp(x - largest), exactly 1 at the largest and 0 at -inf, also where infinities cancel."""
    y = tl.where(x == largest, 1.0, exp(x - largest))
    return tl.where(x == float("-inf"), 0.0, y)


@triton.jit
def _to_float(key):
    """The float whose place among all floats is ``key`` (uint32)."""
    bits = tl.where(key >= 0x80000000, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _to_key(x):
    """The place of fp32 ``x`` among all floats (uint32); -0.0 counts as 0.0, which it equals."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _threshold(scaled_pointer, mass_pointer, floor, needed, vocabulary: tl.constexpr,
               columns: tl.constexpr, counts_mass: tl.constexpr):  # fmt: skip
    """Largest logit t so that the tokens >= max(t, floor) count, or weigh, at least ``needed``."""
    key = tl.zeros((1,), tl.uint32)
    above = tl.zeros((1,), tl.int64)  # what lies above every key that begins like ``key``
    shift = tl.full((1,), 30, tl.uint32)
    for _ in range(0, 16):
        ones = tl.zeros((columns,), tl.int64)
        twos = tl.zeros((columns,), tl.int64)
        threes = tl.zeros((columns,), tl.int64)
        for begin in range(0, vocabulary, columns):
            token = begin + tl.arange(0, columns)
            is_token = token < vocabulary
            x = tl.load(scaled_pointer + token, mask=is_token, other=float("-inf"))
            place = _to_key(x)
            # Of the digits above this one nothing may differ; the first digit has none above it.
            is_alike = ((place ^ key) >> shift) < 4
            is_in = is_alike & is_token & (x >= floor)
            digit = (place >> shift) & 3
            if counts_mass:
                weight = tl.load(mass_pointer + token, mask=is_in, other=0).to(tl.int64)
            else:
                weight = is_in.to(tl.int64)
            ones += tl.where(is_in & (digit == 1), weight, 0)
            twos += tl.where(is_in & (digit == 2), weight, 0)
            threes += tl.where(is_in & (digit == 3), weight, 0)
        from_three = above + tl.sum(threes)
        from_two = from_three + tl.sum(twos)
        from_one = from_two + tl.sum(ones)
        chosen = tl.where(from_one >= needed, 1, 0)
        above_chosen = tl.where(from_one >= needed, from_two, from_one)
        chosen = tl.where(from_two >= needed, 2, chosen)
        above_chosen = tl.where(from_two >= needed, from_three, above_chosen)
        chosen = tl.where(from_three >= needed, 3, chosen)
        above = tl.where(from_three >= needed, above, above_chosen)
        key = key | (chosen.to(tl.uint32) << shift)
        shift = shift - 2
    # The lowest keys are negative NaN: nothing but -inf is left there.
    bound = _to_float(key)
    return tl.where(is_nan(bound), float("-inf"), bound)


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * tl.full((1,), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@quick
@triton.jit
def sample_kernel(
    logits_pointer,
    temperature_pointer,
    top_k_pointer,
    top_p_pointer,
    min_p_pointer,
    seeds_pointer,
    positions_pointer,
    scaled_pointer,
    mass_pointer,
    out_pointer,
    logits_stride: tl.constexpr,
    vocabulary: tl.constexpr,
    columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    row_pointer = logits_pointer + row * logits_stride
    scaled_pointer += row * vocabulary
    mass_pointer += row * vocabulary
    temperature = tl.load(temperature_pointer + row + one).to(tl.float32)
    is_greedy = temperature <= 0.0
    temperature = tl.where(is_greedy, 1.0, temperature)
    largest = tl.full((columns,), float("-inf"), tl.float32)
    for begin in range(0, vocabulary, columns):
        token = begin + tl.arange(0, columns)
        x = _load(row_pointer, begin, vocabulary, columns, temperature)
        tl.store(scaled_pointer + token, x, mask=token < vocabulary)
        largest = tl.maximum(largest, x)
    largest = tl.max(largest, axis=0) + tl.zeros((1,), tl.float32)
    tl.debug_barrier()
    floor = tl.full((1,), float("-inf"), tl.float32)
    top_k = tl.load(top_k_pointer + row).to(tl.int64)
    if top_k > 0:
        needed = tl.minimum(top_k, vocabulary)
        floor = _threshold(scaled_pointer, mass_pointer, floor, needed, vocabulary, columns, False)
    nucleus = floor  # never below it: what top-p needs lies within the top k
    top_p = tl.load(top_p_pointer + row).to(tl.float64)
    if top_p < 1.0:
        total = tl.zeros((columns,), tl.int64)
        for begin in range(0, vocabulary, columns):
            token = begin + tl.arange(0, columns)
            is_token = token < vocabulary
            x = tl.load(scaled_pointer + token, mask=is_token, other=float("-inf"))
            mass = (_relative(x, largest) * 1073741824.0).to(tl.int32)
            tl.store(mass_pointer + token, mass, mask=is_token)
            total += tl.where(x >= floor, mass, 0).to(tl.int64)
        tl.debug_barrier()
        exact = top_p * (tl.sum(total) + tl.zeros((1,), tl.int64)).to(tl.float64)
        needed = exact.to(tl.int64)
        needed = tl.where(needed.to(tl.float64) < exact, needed + 1, needed)
        nucleus = _threshold(
            scaled_pointer, mass_pointer, floor, tl.maximum(needed, 1), vocabulary, columns, True
        )
    min_p = tl.load(min_p_pointer + row + one).to(tl.float32)
    seed = tl.load(seeds_pointer + row + one).to(tl.int64).to(tl.uint32)
    position = tl.load(positions_pointer + row + one).to(tl.int64).to(tl.uint32)
    stream = _mix(_mix(seed) ^ position)
    best = tl.full((columns,), float("-inf"), tl.float32)
    best_token = tl.full((columns,), vocabulary, tl.int64)
    for begin in range(0, vocabulary, columns):
        token = begin + tl.arange(0, columns)
        x = tl.load(scaled_pointer + token, mask=token < vocabulary, other=float("-inf"))
        is_kept = (x >= nucleus) & (_relative(x, largest) >= min_p)
        bits = _mix(stream ^ token.to(tl.uint32))
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        score = x + tl.where(is_greedy, 0.0, -log(-log(uniform)))
        score = tl.where(is_kept | is_greedy, score, float("-inf"))
        # The first token of a lane also counts at -inf, so that a row of nothing answers 0.
        is_better = (score > best) | ((best_token == vocabulary) & (token < vocabulary))
        best = tl.where(is_better, score, best)
        best_token = tl.where(is_better, token.to(tl.int64), best_token)
    is_best = best == tl.max(best, axis=0)
    answer = tl.min(tl.where(is_best, best_token, vocabulary), axis=0)
    tl.store(out_pointer + row, answer)


def sample(logits, temperature, top_k, top_p, min_p, seeds, positions):
    rows, vocabulary = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = logits.new_empty((rows,), dtype=torch.int64)
    scaled = logits.new_empty((rows, vocabulary), dtype=torch.float32)
    mass = torch.empty_like(scaled, dtype=torch.int32)
    sample_kernel[(rows,)](
        logits,
        *(x.contiguous() for x in (temperature, top_k, top_p, min_p, seeds, positions)),
        scaled,
        mass,
        out,
        logits_stride=logits.stride(0),
        vocabulary=vocabulary,
        columns=min(8192, power_of_two(vocabulary)),
        num_warps=16,
        enable_fp_fusion=False,
    )
    return out
