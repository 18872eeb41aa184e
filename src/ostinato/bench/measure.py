"""Times, kernels and memory of calls on one device; on the CPU what there is of them.

Wall times begin with an idle device and end when it is idle again. MiB are 2**20 bytes.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

MIB = 1 << 20
SPIN_CYCLES = 20_000_000
"""About ten milliseconds of waiting on the device, while the host enqueues the call."""

Call = Callable[[], Any]


def synchronize(device: torch.device) -> None:
    """An intended wait."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_ms(call: Call, device: torch.device) -> float:
    """One call, from an idle device to an idle device."""
    synchronize(device)
    begin = time.perf_counter()
    result = call()
    synchronize(device)
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    del result
    return elapsed_ms


def spread(times_ms: Sequence[float]) -> dict[str, float]:
    """Median and upper percentiles (nearest rank) of times in milliseconds, and their number."""
    ordered = sorted(times_ms)

    def rank(percent: int) -> float:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return {
        "median_ms": round(statistics.median(ordered), 4),
        "p90_ms": round(rank(90), 4),
        "p95_ms": round(rank(95), 4),
        "p99_ms": round(rank(99), 4),
        "num_calls": len(ordered),
    }


def in_turns(
    calls: Mapping[str, Call],
    device: torch.device,
    repeats: int,
    *,
    within_s: float,
    rare: Mapping[str, int] | None = None,
) -> dict[str, dict[str, float]]:
    """Wall times of calls that take turns, until ``repeats`` or the seconds are used up.

    A call named in ``rare`` is made in every so many-th turn only.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for turn in range(repeats):
        for name, call in calls.items():
            if turn % (rare or {}).get(name, 1) == 0:
                times[name].append(wall_ms(call, device))
        if time.perf_counter() - begin > within_s:
            break
    return {name: spread(found) for name, found in times.items()}


def device_ms(call: Call, device: torch.device, *, is_queued: bool, repeats: int = 7) -> float:
    """Median milliseconds between events around a call; without a GPU, wall time.

    ``is_queued``: the device waits until the host has enqueued (up to ten milliseconds of) it, so
    that gaps between kernels are the device's own.
    """
    if device.type != "cuda":
        return statistics.median(wall_ms(call, device) for _ in range(repeats))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    for _ in range(repeats):
        synchronize(device)
        if is_queued:
            torch.cuda._sleep(SPIN_CYCLES)
        begin.record()
        result = call()
        end.record()
        end.synchronize()
        del result
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def kernels_of(call: Call, device: torch.device, *, num_listed: int = 14) -> dict[str, Any]:
    """GPU time and number of the kernels of one call, and the most expensive ones by name.

    Empty without a GPU, and where the profiler sees nothing.
    """
    if device.type != "cuda":
        return {}
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    call()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        call()
        synchronize(device)
    on_device = [
        e
        for e in profiler.events()
        if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]
    if not on_device:
        return {}
    by_name: dict[str, list[float]] = {}
    for event in on_device:
        by_name.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3)
    is_copy = ("Memcpy", "Memset")
    kernels = {n: t for n, t in by_name.items() if not n.startswith(is_copy)}
    listed = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:num_listed]
    return {
        "kernels_ms": round(sum(map(sum, kernels.values())), 4),
        "num_kernels": sum(map(len, kernels.values())),
        "copies_ms": round(sum(sum(t) for n, t in by_name.items() if n.startswith(is_copy)), 4),
        "top": [{"name": name[:90], "ms": round(sum(t), 4), "calls": len(t)} for name, t in listed],
    }


class Level(NamedTuple):
    """Bytes: reserved by the allocator, of which peak since the last reset, taken of the device."""

    reserved: int
    peak_reserved: int
    peak_allocated: int
    driver: int


def level(device: torch.device, *, is_reset: bool = False) -> Level:
    """With an idle device and an empty cache; ``is_reset`` begins a new peak. Zeros on the CPU."""
    gc.collect()
    if device.type != "cuda":
        return Level(0, 0, 0, 0)
    synchronize(device)
    peaks = torch.cuda.max_memory_reserved(device), torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    if is_reset:
        torch.cuda.reset_peak_memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    return Level(torch.cuda.memory_reserved(device), *peaks, total - free)


def mib(num_bytes: float) -> float:
    return round(num_bytes / MIB, 1)
