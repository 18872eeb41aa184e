"""Are recorded calls right when threads and lanes share a device, and how fast are they?

Threads with streams of their own call one lane while another thread allocates, pins memory,
collects garbage and records; short-lived threads; two lanes that overlap. All results are held and
compared at the end. Needs an NVIDIA GPU.

    python -m bench.concurrency [--threads 4] [--calls 1000] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

import ostinato
from bench.report import write
from ostinato import GraphConfig
from ostinato.recording.gate import distance
from ostinato.recording.graphed import Graphed
from ostinato.recording.ladder import Axis
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner

WIDTH = 64
EXACT_ROWS = 64
TOP_ROWS = 128
TOLERANCE = 1e-4
NUM_RECORDED_BESIDE = 5

Held = tuple[bool, torch.Tensor, torch.Tensor]
"""Whether the call had the exact size, its input, its result."""


def layers() -> Callable[[torch.Tensor], torch.Tensor]:
    """36 kernels, GEMMs among them."""
    torch.manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = torch.sin(x @ weight) * 1.1
        return x

    return run


class Callers:
    """Threads that call an exact and a padded recording in turn and hold every result."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._fn = fn
        rows = Axis("rows", top=TOP_ROWS, bottom=16, multiple=16)
        self.exact: Graphed = ostinato.graph(fn, name="exact")
        self.rung: Graphed = ostinato.graph(
            fn, name="rung", grows={"x": {0: rows}}, config=GraphConfig(mode="ladder")
        )
        example = torch.randn(EXACT_ROWS, WIDTH, device="cuda")
        self.exact.record(example)
        self.rung.record(example[:10].clone())
        self.held: list[list[Held]] = []
        self.errors: list[BaseException] = []

    def run(self, number: int, num_calls: int) -> None:
        """What one thread does, on a stream of its own."""
        held: list[Held] = []
        self.held.append(held)
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                generator = torch.Generator(device="cuda").manual_seed(number)
                for turn in range(num_calls):
                    is_exact = turn % 2 == 0
                    rows = EXACT_ROWS if is_exact else 1 + (turn * 7 + number) % TOP_ROWS
                    x = torch.randn(rows, WIDTH, device="cuda", generator=generator)
                    held.append((is_exact, x, (self.exact if is_exact else self.rung)(x)))
            stream.synchronize()
        except BaseException as error:
            self.errors.append(error)

    @property
    def num_calls(self) -> int:
        return sum(map(len, self.held))

    def num_wrong(self) -> int:
        """Exact calls must equal the direct ones byte for byte, padded ones closely."""
        wrong = 0
        for is_exact, x, got in (item for held in self.held for item in held):
            want = self._fn(x)
            wrong += not (torch.equal(got, want) if is_exact else distance(got, want) < TOLERANCE)
        return wrong

    def figures(self, seconds: float) -> dict[str, Any]:
        if self.errors:
            raise self.errors[0]
        exact, rung = self.exact.stats(), self.rung.stats()
        counted = sum(exact.calls.values()) + sum(rung.calls.values())
        return {
            "num_calls": self.num_calls,
            "num_wrong": self.num_wrong(),
            "exact_share": round(exact.calls["exact"] / self.num_calls, 3),
            "rung_share": round(rung.calls["rung"] / self.num_calls, 3),
            "direct_share": round((exact.calls["direct"] + rung.calls["direct"]) / counted, 3),
            "num_uncounted": self.num_calls - counted,
            "direct_reasons": {
                reason: count
                for stats in (exact, rung)
                for reason, count in stats.reasons.items()
                if reason.startswith("direct")
            },
            "calls_per_second": round(self.num_calls / seconds),
        }

    def close(self) -> None:
        self.exact.close()
        self.rung.close()


class Noise(threading.Thread):
    """Allocates, pins memory, collects garbage, and now and then records another shape."""

    def __init__(self) -> None:
        super().__init__(name="noise", daemon=True)
        self._ended = threading.Event()
        self.num_turns = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        other = ostinato.graph(lambda x: torch.sin(x) + 1)
        with torch.cuda.stream(torch.cuda.Stream()), ExitStack() as stack:
            stack.callback(other.close)
            while not self._ended.wait(0.003):
                self.num_turns += 1
                size = (self.num_turns * 977) % 8192 + 1
                value = torch.full((size * 257,), 1.0, device="cuda")
                pinned = torch.ones(size * 13).pin_memory()
                value[: size * 13].copy_(pinned, non_blocking=True)
                if self.num_turns % 8 == 0:
                    gc.collect()
                if self.num_turns % 16 == 0 and self.num_turns <= 16 * NUM_RECORDED_BESIDE:
                    other.record(value)

    def end(self) -> None:
        self._ended.set()
        self.join(30)
        if self.error is not None:
            raise self.error


def threads_on_one_lane(num_threads: int, num_calls: int) -> dict[str, Any]:
    callers, noise = Callers(layers()), Noise()
    noise.start()
    start = time.perf_counter()
    _run_all(
        [threading.Thread(target=callers.run, args=(i, num_calls)) for i in range(num_threads)]
    )
    seconds = time.perf_counter() - start
    noise.end()
    figures = {**callers.figures(seconds), "noise_turns": noise.num_turns}
    callers.close()
    return figures


def short_lived_threads(num_threads: int, num_calls: int) -> dict[str, Any]:
    """Four at a time, each gone after a few calls."""
    callers = Callers(layers())
    start = time.perf_counter()
    for first in range(0, num_threads, 4):
        numbers = range(first, min(first + 4, num_threads))
        _run_all([threading.Thread(target=callers.run, args=(i, num_calls)) for i in numbers])
    figures = callers.figures(time.perf_counter() - start)
    callers.close()
    return figures


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def two_lanes(num_calls: int) -> dict[str, Any]:
    """Split-K GEMMs, which need workspaces, on two lanes at once, against quiet results."""
    long = 1 << 16
    weight = torch.randn(long, 64, device="cuda", dtype=torch.bfloat16)
    inputs = [torch.randn(64, long, device="cuda", dtype=torch.bfloat16) for _ in range(2)]

    def products(x: torch.Tensor) -> torch.Tensor:
        total = x @ weight
        for _ in range(19):
            total = total * 0.5 + x @ weight
        return total

    config = GraphConfig(min_hits=1)
    runners = [Runner.on(torch.device("cuda"), config) for _ in range(2)]
    lanes = [r.serve(Region(name="products", fn=products), config) for r in runners]
    held: list[list[torch.Tensor]] = [[], []]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def call(lane: int, times: int) -> None:
        with torch.cuda.stream(streams[lane]), ostinato.route("exact"):
            held[lane] += [lanes[lane].call((inputs[lane],), {}) for _ in range(times)]
        streams[lane].synchronize()

    torch.cuda.synchronize()
    for lane in range(2):
        call(lane, 2)
    want = [held[lane][1] for lane in range(2)]
    start = time.perf_counter()
    for lane in range(2):
        call(lane, num_calls)
    one_by_one = time.perf_counter() - start
    start = time.perf_counter()
    _run_all([threading.Thread(target=call, args=(lane, num_calls)) for lane in range(2)])
    together = time.perf_counter() - start
    wrong = sum(not torch.equal(t, want[lane]) for lane in range(2) for t in held[lane])
    num_exact = sum(
        runner.stats(lane).calls["exact"] for runner, lane in zip(runners, lanes, strict=True)
    )
    for runner in runners:
        runner.close()
    return {
        "num_calls": 2 * num_calls,
        "num_wrong": wrong,
        "num_exact": num_exact,
        "one_by_one_ms": round(one_by_one * 1e3, 1),
        "together_ms": round(together * 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    rows = {
        "threads on one lane": threads_on_one_lane(options.threads, options.calls),
        "short-lived threads": short_lived_threads(100, 10),
        "two lanes": two_lanes(200),
    }
    for name, row in rows.items():
        print(f"{name:20}", "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    write("concurrency", rows, options.out)


if __name__ == "__main__":
    main()
