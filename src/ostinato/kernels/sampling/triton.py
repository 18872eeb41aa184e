"""Six launches: each row is spread over many programs, and nothing waits for the host.

A row without top-k, top-p and min-p is done by ``survey`` and ``finish``; the others end at once
for it. Else ``weigh`` makes a histogram of the row's tokens by their distance from the largest
logit, which says in which bin the threshold lies; ``collect`` writes down the tokens that matter,
``search`` finds the threshold among them exactly, and ``choose`` draws from what it keeps. Counts
and masses are integers, so neither the order of additions nor that of the list shows in an answer.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div, power_of_two
from ostinato.kernels.sampling.threshold import (
    BINS,
    TILE,
    collect_kernel,
    is_searched,
    largest_of,
    load_part,
    relative,
    search_kernel,
    weigh_kernel,
)
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_math import log


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * tl.full((1,), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _store_best(x, is_kept, is_greedy, token, row, seeds_pointer, positions_pointer, best_pointer,
                token_pointer, vocabulary: tl.constexpr, parts: tl.constexpr):  # fmt: skip
    """The best score of a part and its first token, which also counts at -inf."""
    if not is_greedy:
        one = tl.arange(0, 1)
        seed = tl.load(seeds_pointer + row + one).to(tl.int64).to(tl.uint32)
        position = tl.load(positions_pointer + row + one).to(tl.int64).to(tl.uint32)
        bits = _mix(_mix(_mix(seed) ^ position) ^ token.to(tl.uint32))
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        x = tl.where(is_kept, x + -log(-log(uniform)), float("-inf"))
    best = tl.max(x, axis=0)
    first = tl.min(tl.where((x == best) & (token < vocabulary), token, vocabulary), axis=0)
    part = row * parts + tl.program_id(0)
    tl.store(best_pointer + part, best)
    tl.store(token_pointer + part, first)


@quick
@triton.jit
def survey_kernel(logits_pointer, temperature_pointer, top_k_pointer, top_p_pointer, min_p_pointer,
                  seeds_pointer, positions_pointer, largest_pointer, best_pointer, token_pointer,
                  weights_pointer, length_pointer, logits_stride: tl.constexpr,
                  vocabulary: tl.constexpr, parts: tl.constexpr, columns: tl.constexpr,
                  bins: tl.constexpr):  # fmt: skip
    """The largest logit of a part; without filters its choice, else its row's bins are emptied."""
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * columns + tl.arange(0, columns)
    x, is_greedy = load_part(
        logits_pointer, row, token, temperature_pointer, logits_stride, vocabulary
    )
    is_filtered = is_searched(row, temperature_pointer, top_k_pointer, top_p_pointer)
    is_filtered |= tl.load(min_p_pointer + row).to(tl.float32) > 0.0
    if is_greedy | (not is_filtered):
        _store_best(x, token < vocabulary, is_greedy, token, row, seeds_pointer,
                    positions_pointer, best_pointer, token_pointer, vocabulary, parts)  # fmt: skip
    else:
        tl.store(largest_pointer + row * parts + tl.program_id(0), tl.max(x, axis=0))
        if tl.program_id(0) == 0:
            index = tl.arange(0, bins)
            tl.store(weights_pointer + row * bins + index, tl.zeros((bins,), tl.int64))
            tl.store(length_pointer + row, 0)


@quick
@triton.jit
def choose_kernel(logits_pointer, temperature_pointer, top_k_pointer, top_p_pointer, min_p_pointer,
                  seeds_pointer, positions_pointer, largest_pointer, threshold_pointer,
                  best_pointer, token_pointer, logits_stride: tl.constexpr,
                  vocabulary: tl.constexpr, parts: tl.constexpr, part_columns: tl.constexpr,
                  columns: tl.constexpr):  # fmt: skip
    """The best score of a part among the tokens that the row's filters keep."""
    row = tl.program_id(1).to(tl.int64)
    min_p = tl.load(min_p_pointer + row).to(tl.float32)
    has_threshold = is_searched(row, temperature_pointer, top_k_pointer, top_p_pointer)
    is_warm = tl.load(temperature_pointer + row).to(tl.float32) > 0.0
    if not (is_warm & (has_threshold | (min_p > 0.0))):
        return
    token = tl.program_id(0) * columns + tl.arange(0, columns)
    x, is_greedy = load_part(
        logits_pointer, row, token, temperature_pointer, logits_stride, vocabulary
    )
    largest = largest_of(largest_pointer, row, parts, part_columns)
    threshold = tl.where(has_threshold, tl.load(threshold_pointer + row), float("-inf"))
    is_kept = (x >= threshold) & (relative(x, largest) >= min_p)
    _store_best(x, is_kept, is_greedy, token, row, seeds_pointer, positions_pointer,
                best_pointer, token_pointer, vocabulary, parts)  # fmt: skip


@quick
@triton.jit
def finish_kernel(best_pointer, token_pointer, out_pointer, vocabulary: tl.constexpr,
                  parts: tl.constexpr, part_columns: tl.constexpr):  # fmt: skip
    """The best of the parts; of equals the smaller token."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, part_columns)
    at = row * parts + part
    score = tl.load(best_pointer + at, mask=part < parts, other=float("-inf"))
    token = tl.load(token_pointer + at, mask=part < parts, other=vocabulary)
    is_best = score == tl.max(score, axis=0)
    tl.store(out_pointer + row, tl.min(tl.where(is_best, token, vocabulary), axis=0))


def sample(logits, temperature, top_k, top_p, min_p, seeds, positions):
    rows, vocabulary = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    filters = [x.contiguous() for x in (temperature, top_k, top_p)]
    min_p, *stream = (x.contiguous() for x in (min_p, seeds, positions))
    _, most, warps = tile("sample", vocabulary)
    columns = min(most, power_of_two(vocabulary))
    parts = ceil_div(vocabulary, columns)
    out = logits.new_empty((rows,), dtype=torch.int64)
    largest, best = logits.new_empty((2, rows, parts), dtype=torch.float32).unbind()
    token = logits.new_empty((rows, parts), dtype=torch.int32)
    weights = logits.new_empty((rows, BINS), dtype=torch.int64)
    length = logits.new_empty((rows,), dtype=torch.int32)
    listed = logits.new_empty((rows, vocabulary), dtype=torch.float32)
    threshold = logits.new_empty((rows,), dtype=torch.float32)
    size = {"vocabulary": vocabulary, "parts": parts}
    all_parts = size | {"part_columns": power_of_two(parts)}
    part = {"logits_stride": logits.stride(0), "columns": columns}
    how = {"num_warps": warps, "enable_fp_fusion": False}
    one = {"num_warps": 1, "enable_fp_fusion": False}
    grid = (parts, rows)
    survey_kernel[grid](
        logits, *filters, min_p, *stream, largest, best, token, weights, length,
        bins=BINS, **part, **size, **how,
    )  # fmt: skip
    weigh_kernel[grid](logits, *filters, largest, weights, bins=BINS, **part, **all_parts, **how)
    collect_kernel[grid](
        logits, *filters, largest, weights, listed, length, bins=BINS, **part, **all_parts, **how
    )
    search_kernel[(rows,)](
        *filters, largest, weights, listed, length, threshold,
        bins=BINS, tile=TILE, num_warps=16, enable_fp_fusion=False, **all_parts,
    )  # fmt: skip
    choose_kernel[grid](
        logits, *filters, min_p, *stream, largest, threshold, best, token,
        **part, **all_parts, **how,
    )  # fmt: skip
    finish_kernel[(rows,)](best, token, out, **all_parts, **one)
    return out
