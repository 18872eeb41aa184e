"""Times candidates on a CUDA device: device time, not launch time.

A spin is queued first, long enough that the host has launched a whole batch before its first kernel
starts, so that the gaps between launches do not count. Candidates alternate; the median is kept.
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

SPIN_CYCLES = 3_000_000
"""Some 1.6 ms of an H200."""
_LONGEST_SPIN = 16 * SPIN_CYCLES
_ROUNDS = 5
_CALLS = 8


def device_seconds(candidates: Sequence[Candidate]) -> list[float]:
    """Median device seconds per call of each candidate, interleaved. This waits for the device."""
    for candidate in candidates:
        candidate()
    spin_cycles = SPIN_CYCLES
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(_ROUNDS):
        for index, candidate in enumerate(candidates):
            seconds, spin_cycles = behind_a_spin([candidate] * _CALLS, spin_cycles)
            samples[index].append(seconds / _CALLS)
    return [statistics.median(times) for times in samples]


def behind_a_spin(calls: Sequence[Candidate], spin_cycles: int) -> tuple[float, int]:
    """Device seconds of all calls together, and the spin that was long enough to queue them.

    Where the spin ended before the host had launched everything (a host may be busy for seconds,
    and a launch then takes three times as long) the device had waited for it, so a spin of twice
    the length is tried, up to some 26 ms.
    """
    while True:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(spin_cycles)
        begin.record()
        for call in calls:
            call()
        was_late = begin.query()
        end.record()
        end.synchronize()
        if not was_late or spin_cycles >= _LONGEST_SPIN:
            return float(begin.elapsed_time(end)) / 1e3, spin_cycles
        spin_cycles *= 2
