"""How much memory do recordings take, and does it come back?

Thirty-two shapes recorded by one warm-up; a thousand random shapes under a budget;
record-and-close cycles. Allocator bytes are exact; driver bytes (``mem_get_info``) are the
whole device's. Needs an NVIDIA GPU. MiB are 2**20 bytes.

    python -m bench.memory [--shapes 1000] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import random
from typing import Any, NamedTuple

import torch

import ostinato
from bench.report import write
from ostinato import GraphConfig
from ostinato.recording.graphed import Graphed, warm_up
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner

MIB = 1 << 20
NUM_SHAPES = 32
ROWS_STEP = 256
WIDTH = 4096
BUDGET_BYTES = 256 * MIB


class Level(NamedTuple):
    """Bytes: what the allocator has reserved and handed out, what is taken of the device."""

    reserved: int
    allocated: int
    driver: int


def level() -> Level:
    """With an idle device and an empty cache."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return Level(torch.cuda.memory_reserved(), torch.cuda.memory_allocated(), total - free)


def mib(num_bytes: float) -> float:
    return round(num_bytes / MIB, 2)


def wide(x: torch.Tensor) -> torch.Tensor:
    """Three temporaries as large as the input at once; a small result."""
    a = torch.sin(x)
    b = torch.cos(a)
    c = a * b
    return (a + b + c).mean(1)


def few(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.sin(x) * 1.01 + 0.1
    return x


def _served(graphed: Graphed, x: torch.Tensor) -> torch.Tensor:
    with ostinato.route("exact"):
        result: torch.Tensor = graphed(x)
    return result


def thirty_two_shapes() -> dict[str, Any]:
    """Sizes 1/32 to 32/32 in random order, recorded by one warm-up use."""
    examples = [torch.randn(ROWS_STEP * k, WIDTH, device="cuda") for k in range(1, NUM_SHAPES + 1)]
    alone = ostinato.graph(wide).record(examples[-1])
    largest_pool = alone.recordings()[0].generation.pool_bytes
    alone.close()
    random.Random(0).shuffle(examples)
    before = level()
    graphed = ostinato.graph(wide)
    refusals = warm_up(graphed, [((x,), {}) for x in examples])
    after = level()
    recordings = graphed.recordings()
    buffers = sum(e.inputs.num_bytes + e.results.num_bytes for e in recordings)
    is_right = all(torch.equal(_served(graphed, x), wide(x)) for x in examples)
    taken = after.reserved - before.reserved
    figures = {
        "num_recordings": len(recordings),
        "num_refused": len(refusals),
        "is_right": is_right,
        "largest_pool_mib": mib(largest_pool),
        "buffers_mib": mib(buffers),
        "taken_mib": mib(taken),
        "pool_ratio": round((taken - buffers) / largest_pool, 3),
        "driver_mib": mib(after.driver - before.driver),
        "counted_mib": mib(graphed.stats().device_bytes_held),
    }
    graphed.close()
    return figures


def random_shapes(num_shapes: int) -> dict[str, Any]:
    """Each call has a new size; all recordings stay under one budget."""
    config = GraphConfig(min_hits=1, budget_bytes=BUDGET_BYTES)
    runner = Runner.on(torch.device("cuda"), config)
    served = runner.serve(Region(name="few", fn=few), config)
    sizes = random.Random(1).sample(range(1, 1 << 20), num_shapes)
    before, highest, num_wrong = level(), 0, 0
    with ostinato.route("exact"):
        for turn, size in enumerate(sizes):
            x = torch.full((size,), float(turn % 17) + 0.5, device="cuda")
            num_wrong += not torch.equal(served.call((x,), {}), few(x))
            highest = max(highest, runner.budget.held())
    after, stats = level(), runner.stats(served)
    runner.close()
    return {
        "num_shapes": num_shapes,
        "num_wrong": num_wrong,
        "num_exact": stats.calls["exact"],
        "num_recorded": stats.num_recorded,
        "num_evicted": stats.num_evicted,
        "budget_mib": mib(BUDGET_BYTES),
        "highest_held_mib": mib(highest),
        "taken_mib": mib(after.reserved - before.reserved),
        "driver_mib": mib(after.driver - before.driver),
    }


def cycle() -> None:
    """Record, call and close, as one user does."""
    x = torch.randn(1 << 20, device="cuda")
    graphed = ostinato.graph(few)
    if not torch.equal(_served(graphed, x), few(x)):
        raise SystemExit("a recording is wrong")
    graphed.close()


def runner_cycle() -> None:
    """The same with a lane of its own."""
    runner = Runner.on(torch.device("cuda"), GraphConfig())
    x = torch.randn(1 << 20, device="cuda")
    served = runner.serve(Region(name="few", fn=few), GraphConfig())
    with ostinato.route("exact"):
        served.call((x,), {})
    runner.close()


def cycles(one: Any, num_further: int = 10) -> dict[str, Any]:
    """What one cycle leaves, and what further ones add to that."""
    before = level()
    one()
    first = level()
    for _ in range(num_further):
        one()
    last = level()
    return {
        "left_by_first_mib": mib(first.reserved - before.reserved),
        "driver_left_by_first_mib": mib(first.driver - before.driver),
        "num_further": num_further,
        "added_reserved_bytes": last.reserved - first.reserved,
        "added_allocated_bytes": last.allocated - first.allocated,
        "driver_added_mib": mib(last.driver - first.driver),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    with torch.inference_mode():
        rows["record and close"] = cycles(cycle)
        rows["a lane of its own, and close"] = cycles(runner_cycle)
        rows["32 shapes"] = thirty_two_shapes()
        rows["random shapes"] = random_shapes(options.shapes)
    for name, row in rows.items():
        print(f"{name:30}", "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    write("memory", rows, options.out)


if __name__ == "__main__":
    main()
