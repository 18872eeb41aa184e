"""Top-k and top-p as one threshold on a row's logits, found by bins and then digit by digit.

A token's weight is 1 where top-k is on and its mass where only top-p is: the threshold is the
largest logit at which the weights from there up reach what is needed. Sums are of integers.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.triton_math import divide, exp, is_nan

BINS = 1024
"""1/32 of a logit each. The last holds all that is 32 or more below the largest logit: no mass."""
_PER_UNIT = tl.constexpr(32.0)
_DIGITS = tl.constexpr(16)
TILE = 1024
"""Listed logits that ``search`` looks at at a time, with 16 warps."""


@triton.jit
def load_part(logits_pointer, row, token, temperature_pointer, logits_stride: tl.constexpr,
              vocabulary: tl.constexpr):  # fmt: skip
    """Logits over temperature in fp32, -inf for NaN and beyond the vocabulary; and if greedy."""
    temperature = tl.load(temperature_pointer + row).to(tl.float32)
    is_greedy = temperature <= 0.0
    temperature = tl.where(is_greedy, 1.0, temperature)
    x = tl.load(
        logits_pointer + row * logits_stride + token, mask=token < vocabulary, other=float("-inf")
    )
    x = divide(x.to(tl.float32), tl.broadcast_to(temperature, token.shape))
    return tl.where(is_nan(x), float("-inf"), x), is_greedy


@triton.jit
def relative(x, largest):
    """exp(x - largest), exactly 1 at the largest and 0 at -inf, also where infinities cancel."""
    y = tl.where(x == largest, 1.0, exp(x - largest))
    return tl.where(x == float("-inf"), 0.0, y)


@triton.jit
def _mass(x, largest):
    return (relative(x, largest) * 1073741824.0).to(tl.int32).to(tl.int64)


@triton.jit
def is_searched(row, temperature_pointer, top_k_pointer, top_p_pointer):
    """Whether the row draws with top-k or top-p."""
    is_warm = tl.load(temperature_pointer + row).to(tl.float32) > 0.0
    has_k = tl.load(top_k_pointer + row).to(tl.int64) > 0
    return is_warm & (has_k | (tl.load(top_p_pointer + row).to(tl.float64) < 1.0))


@triton.jit
def largest_of(largest_pointer, row, parts: tl.constexpr, part_columns: tl.constexpr):
    """The row's largest logit, from the largest of its parts."""
    part = tl.arange(0, part_columns)
    values = tl.load(
        largest_pointer + row * parts + part, mask=part < parts, other=float("-inf")
    )  # fmt: skip
    return tl.max(values, axis=0)


@triton.jit
def _bin_of(x, largest, bins: tl.constexpr):
    """The nearer to the largest logit, the smaller; 0 for the largest itself."""
    # An infinite distance, or one that is not a number, is capped before it becomes an integer.
    distance = tl.where(x == largest, 0.0, largest - x) * _PER_UNIT
    return tl.where(distance < bins - 1.0, distance, bins - 1.0).to(tl.int32)


@triton.jit
def _needed_mass(top_p, total):
    """ceil(top_p * total) in fp64, at least 1."""
    exact = top_p * total.to(tl.float64)
    needed = exact.to(tl.int64)
    needed = tl.where(needed.to(tl.float64) < exact, needed + 1, needed)
    return tl.maximum(needed, 1)


@triton.jit
def _crossed_bin(weights_pointer, row, top_k, top_p, vocabulary: tl.constexpr,
                 bins: tl.constexpr):  # fmt: skip
    """(the bin in which the needed weight is reached, the weight before it, what is needed)."""
    index = tl.arange(0, bins)
    weights = tl.load(weights_pointer + row * bins + index)
    if top_k > 0:
        needed = tl.minimum(top_k, vocabulary)
    else:
        needed = _needed_mass(top_p, tl.sum(weights, axis=0))
    reached = tl.cumsum(weights, axis=0)
    # The last bin is not weighed: what the others do not reach lies there.
    crossed = tl.minimum(tl.sum((reached < needed).to(tl.int32), axis=0), bins - 1)
    above = tl.sum(tl.where(index < crossed, weights, 0), axis=0)
    return crossed, above, needed


@quick
@triton.jit
def weigh_kernel(logits_pointer, temperature_pointer, top_k_pointer, top_p_pointer, largest_pointer,
                 weights_pointer, logits_stride: tl.constexpr, vocabulary: tl.constexpr,
                 parts: tl.constexpr, part_columns: tl.constexpr, columns: tl.constexpr,
                 bins: tl.constexpr):  # fmt: skip
    """Adds up the weights of the row's tokens by bin."""
    row = tl.program_id(1).to(tl.int64)
    if not is_searched(row, temperature_pointer, top_k_pointer, top_p_pointer):
        return
    token = tl.program_id(0) * columns + tl.arange(0, columns)
    x, _ = load_part(logits_pointer, row, token, temperature_pointer, logits_stride, vocabulary)
    largest = largest_of(largest_pointer, row, parts, part_columns)
    place = _bin_of(x, largest, bins)
    is_weighed = (token < vocabulary) & (place < bins - 1)
    if tl.load(top_k_pointer + row).to(tl.int64) > 0:
        weight = is_weighed.to(tl.int64)
    else:
        weight = tl.where(is_weighed, _mass(x, largest), 0)
    tl.atomic_add(weights_pointer + row * bins + place, weight, mask=weight > 0, sem="relaxed")


@quick
@triton.jit
def collect_kernel(logits_pointer, temperature_pointer, top_k_pointer, top_p_pointer,
                   largest_pointer, weights_pointer, list_pointer, length_pointer,
                   logits_stride: tl.constexpr, vocabulary: tl.constexpr, parts: tl.constexpr,
                   part_columns: tl.constexpr, columns: tl.constexpr,
                   bins: tl.constexpr):  # fmt: skip
    """Lists the logits that ``search`` needs: of the crossed bin, with top-k all down to it."""
    row = tl.program_id(1).to(tl.int64)
    if not is_searched(row, temperature_pointer, top_k_pointer, top_p_pointer):
        return
    token = tl.program_id(0) * columns + tl.arange(0, columns)
    x, _ = load_part(logits_pointer, row, token, temperature_pointer, logits_stride, vocabulary)
    largest = largest_of(largest_pointer, row, parts, part_columns)
    top_k = tl.load(top_k_pointer + row).to(tl.int64)
    top_p = tl.load(top_p_pointer + row).to(tl.float64)
    crossed, _, _ = _crossed_bin(weights_pointer, row, top_k, top_p, vocabulary, bins)
    place = _bin_of(x, largest, bins)
    nearest = tl.where(top_k > 0, 0, crossed)
    is_listed = (token < vocabulary) & (place >= nearest) & (place <= crossed)
    count = is_listed.to(tl.int32)
    total = tl.sum(count, axis=0)
    if total > 0:
        begin = tl.atomic_add(length_pointer + row, total, sem="relaxed")
        slot = begin + tl.cumsum(count, axis=0) - 1
        tl.store(list_pointer + row * vocabulary + slot, x, mask=is_listed)


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
def _threshold(list_pointer, length, floor, largest, above, needed, counts_mass: tl.constexpr,
               tile: tl.constexpr):  # fmt: skip
    """Largest logit t so that the listed tokens >= max(t, floor) and ``above`` reach ``needed``."""
    key = tl.zeros((1,), tl.uint32)
    shift = tl.full((1,), 28, tl.uint32)
    digit = tl.arange(0, _DIGITS)
    for _ in range(0, 8):
        weights = tl.zeros((_DIGITS,), tl.int64)
        for begin in range(0, length, tile):
            slot = begin + tl.arange(0, tile)
            is_listed = slot < length
            x = tl.load(list_pointer + slot, mask=is_listed, other=float("-inf"))
            place = _to_key(x)
            # Of the digits above this one nothing may differ; the first digit has none above it.
            is_in = (((place ^ key) >> shift) < _DIGITS) & is_listed & (x >= floor)
            own = ((place >> shift) & (_DIGITS - 1)).to(tl.int32)
            weight = _mass(x, largest) if counts_mass else is_in.to(tl.int64)
            is_digit = is_in[None, :] & (own[None, :] == digit[:, None])
            weights += tl.sum(tl.where(is_digit, weight[None, :], 0), axis=1)
        reached = above + tl.sum(weights, axis=0) - tl.cumsum(weights, axis=0) + weights
        chosen = tl.maximum(tl.sum((reached >= needed).to(tl.int32), axis=0) - 1, 0)
        above += tl.sum(tl.where(digit > chosen, weights, 0), axis=0)
        key = key | (chosen.to(tl.uint32) << shift)
        shift = shift - 4
    # The lowest keys are negative NaN: nothing but -inf is left there.
    bound = _to_float(key)
    return tl.where(is_nan(bound), float("-inf"), bound)


@quick
@triton.jit
def search_kernel(temperature_pointer, top_k_pointer, top_p_pointer, largest_pointer,
                  weights_pointer, list_pointer, length_pointer, threshold_pointer,
                  vocabulary: tl.constexpr, parts: tl.constexpr, part_columns: tl.constexpr,
                  bins: tl.constexpr, tile: tl.constexpr):  # fmt: skip
    """One program finds a row's threshold among its listed logits."""
    row = tl.program_id(0).to(tl.int64)
    if not is_searched(row, temperature_pointer, top_k_pointer, top_p_pointer):
        return
    largest = largest_of(largest_pointer, row, parts, part_columns)
    top_k = tl.load(top_k_pointer + row).to(tl.int64)
    top_p = tl.load(top_p_pointer + row).to(tl.float64)
    _, above, needed = _crossed_bin(weights_pointer, row, top_k, top_p, vocabulary, bins)
    list_pointer += row * vocabulary
    length = tl.load(length_pointer + row)
    threshold = tl.full((1,), float("-inf"), tl.float32)
    if top_k > 0:
        above = above * 0  # the list holds what is above
        threshold = _threshold(list_pointer, length, threshold, largest, above, needed, False, tile)
        if top_p < 1.0:
            total = tl.zeros((tile,), tl.int64)
            for begin in range(0, length, tile):
                slot = begin + tl.arange(0, tile)
                x = tl.load(list_pointer + slot, mask=slot < length, other=float("-inf"))
                total += tl.where((slot < length) & (x >= threshold), _mass(x, largest), 0)
            needed = _needed_mass(top_p, tl.sum(total, axis=0))
    if top_p < 1.0:
        floor = threshold
        threshold = _threshold(list_pointer, length, floor, largest, above, needed, True, tile)
    tl.store(threshold_pointer + row + tl.arange(0, 1), threshold)
