"""Times candidates on a CUDA device: device time, not launch time.

A short spin is queued first, so that the host has launched a whole batch before its first kernel
starts and the gaps between launches do not count. Candidates alternate; the median is kept.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence

import torch

Candidate = Callable[[], object]
Timer = Callable[[Sequence[Candidate]], list[float]]
"""Seconds per call of each candidate."""

ONE_AT_A_TIME = threading.RLock()
"""Held by whoever proves a kernel or times candidates. They do so within each other (what is timed
may be a chain of operators, each of which is proven or chosen first), so that two locks would be
taken in either order; and two at once would spoil each other's times.
"""

_ROUNDS = 5
_CALLS = 8
_SPIN_CYCLES = 3_000_000


def device_seconds(candidates: Sequence[Candidate]) -> list[float]:
    """Median device seconds per call of each candidate, interleaved. This waits for the device."""
    for candidate in candidates:
        candidate()
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(_ROUNDS):
        for index, candidate in enumerate(candidates):
            samples[index].append(_batch_seconds(candidate))
    return [statistics.median(times) for times in samples]


def _batch_seconds(candidate: Candidate) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_SPIN_CYCLES)
    begin.record()
    for _ in range(_CALLS):
        candidate()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _CALLS
