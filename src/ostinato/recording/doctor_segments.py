"""The contract of segment offsets (cu_seqlens), checked on the host before anything is uploaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from ostinato.recording.doctor_report import Diagnosis
from ostinato.recording.doctor_rules import diagnosis


def check_segments(
    offsets: Sequence[int] | torch.Tensor,
    *,
    num_tokens: int,
    max_length: int | None = None,
    capacity: int | None = None,
) -> list[Diagnosis]:
    """Every way in which offsets break the contract; an empty list when none.

    ``num_tokens``: rows that the buffers hold; every one must belong to a segment. ``max_length``:
    the bound that was, or will be, baked. ``capacity``: the segments that there is room for.
    """
    return [
        diagnosis("segments", detail, None)
        for detail in _breaches(offsets, num_tokens, max_length, capacity)
    ]


def _breaches(
    offsets: Any, num_tokens: int, max_length: int | None, capacity: int | None
) -> Iterator[str]:
    if isinstance(offsets, torch.Tensor):
        if offsets.dtype is not torch.int32:
            yield f"offsets of dtype {offsets.dtype} (expected torch.int32)"
        if offsets.dim() != 1:
            yield f"offsets with {offsets.dim()} dimensions (expected 1)"
            return
        offsets = offsets.tolist()
    values = [int(v) for v in offsets]
    if len(values) < 2 or values[0] != 0:
        yield f"offsets {values[:4]} (expected at least [0, n])"
        return
    lengths = [b - a for a, b in pairwise(values)]
    if min(lengths) < 0:
        yield f"an offset that goes back after segment {lengths.index(min(lengths))}"
    if values[-1] != num_tokens:
        yield f"a last offset of {values[-1]} for {num_tokens} rows (every row needs a segment)"
    if max_length is not None and max(lengths) > max_length:
        yield f"a segment of {max(lengths)} rows above the bound {max_length}"
    if capacity is not None and len(lengths) > capacity:
        yield f"{len(lengths)} segments above the capacity {capacity}"
