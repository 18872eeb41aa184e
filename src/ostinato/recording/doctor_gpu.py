"""What a GPU shows of one callable: launches, times of direct calls, what a recording brings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ostinato.errors import OstinatoError
from ostinato.recording.config import GraphConfig
from ostinato.recording.cuda_census import count_kernels
from ostinato.recording.doctor_report import Measurements

MAX_SECONDS = 2.0
MAX_CALLS = 50
MIN_CALLS = 5


class _Times(NamedTuple):
    """Medians in microseconds: until the call returned, until its result was there, on the GPU."""

    host_us: float
    whole_us: float
    gpu_us: float


def measure(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_refused: bool
) -> Measurements:
    """Time direct calls and, unless something refuses it, recorded calls of ``fn``.

    The caller has run ``fn`` before, and puts back what it writes. The recording is freed again.
    """

    def direct() -> Any:
        return fn(*args, **kwargs)

    times = _timed(direct)
    recorded, route = (None, "findings refuse it") if is_refused else _recorded(fn, args, kwargs)
    return Measurements(
        device=torch.cuda.get_device_name(),
        num_launches=count_kernels(lambda _: direct()),
        host_us=times.host_us,
        direct_us=times.whole_us,
        replayed_us=recorded.whole_us if recorded else None,
        replayed_host_us=recorded.host_us if recorded else None,
        busy_percent=min(100.0, 100 * recorded.gpu_us / times.whole_us) if recorded else None,
        route=route,
    )


def _recorded(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[_Times | None, str]:
    """Times of recorded calls and how they were served, or ``None`` and why not."""
    from ostinato.recording.graphed import graph
    from ostinato.recording.routes import route

    graphed = graph(fn, config=GraphConfig(min_hits=1))
    try:
        graphed.record(*args, **kwargs)
        with route("exact"):
            times = _timed(lambda: graphed(*args, **kwargs))
        served = graphed.why()
        return times, f"{served.route}: {served.reason}"
    except OstinatoError as error:
        return None, str(error)
    finally:
        graphed.close()


def _timed(call: Callable[[], Any]) -> _Times:
    call()
    samples: list[tuple[float, float, float]] = []
    end = time.perf_counter() + MAX_SECONDS
    while len(samples) < MIN_CALLS or (len(samples) < MAX_CALLS and time.perf_counter() < end):
        samples.append(_sample(call))
    return _Times(*map(statistics.median, zip(*samples, strict=True)))


def _sample(call: Callable[[], Any]) -> tuple[float, float, float]:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before = time.perf_counter()
    started.record()
    result = call()
    ended.record()
    returned = time.perf_counter()
    ended.synchronize()
    done = time.perf_counter()
    del result
    return 1e6 * (returned - before), 1e6 * (done - before), 1e3 * started.elapsed_time(ended)
