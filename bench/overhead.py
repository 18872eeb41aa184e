"""How much host time does a replayed call cost beyond a hand-written one?

A region of 700 kernels; host time until the call returned, queue empty at the start, medians. Beside it, in
the same run: the hand-written ``copy_`` + ``replay()`` + ``clone()``, ``make_graphed_callables`` and
``torch.compile(mode="reduce-overhead")``. Needs an NVIDIA GPU.

    python bench/overhead.py [--calls 300] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import ostinato
from bench.report import write

NUM_KERNELS = 700
NUM_FLOATS = 1 << 18  # 1 MB


def median_us(call: Callable[[], Any], calls: int, warm_up: int = 30) -> float:
    """Median host time of a call in microseconds; the device is idle when each begins."""
    for _ in range(warm_up):
        call()
    times = []
    for _ in range(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return round(statistics.median(times) * 1e6, 2)


def chain(*inputs: torch.Tensor) -> torch.Tensor:
    """NUM_KERNELS elementwise kernels over all inputs, each of shape (NUM_FLOATS,)."""
    y = inputs[0]
    for x in inputs[1:]:
        y = y + x
    for _ in range(NUM_KERNELS - len(inputs) + 1):
        y = y + 1.0
    return y


class Stack(torch.nn.Module):
    """200 linear layers with bias, 400 tensors, on a small width."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(200)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def by_hand(fn: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    """What a careful user writes without a library."""
    static = [x.clone() for x in inputs]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            fn(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = fn(*static)

    def call() -> torch.Tensor:
        for a, b in zip(static, inputs, strict=True):
            a.copy_(b)
        graph.replay()
        return out.clone()

    return call


def measure(fn: Any, inputs: list[torch.Tensor], calls: int) -> dict[str, float]:
    """Interleaved halves, so that a drift of the machine's clock hits both alike."""
    hand = by_hand(fn, inputs)
    graphed = ostinato.graph(fn).record(*inputs)
    if not torch.equal(graphed(*inputs), fn(*inputs)):
        raise SystemExit("the recording is wrong")
    rounds = [(median_us(hand, calls), median_us(lambda: graphed(*inputs), calls)) for _ in range(3)]
    route = graphed.why()
    assert route is not None and route.route == "exact", route
    hand_us = statistics.median(r[0] for r in rounds)
    ours_us = statistics.median(r[1] for r in rounds)
    graphed.close()
    return {"by_hand_us": hand_us, "ostinato_us": ours_us, "over_us": round(ours_us - hand_us, 2)}


def peers(inputs: list[torch.Tensor], calls: int) -> dict[str, float]:
    made = torch.cuda.make_graphed_callables(chain, tuple(x.clone() for x in inputs))
    compiled = torch.compile(chain, mode="reduce-overhead")
    for _ in range(4):
        compiled(*inputs)
    return {
        "make_graphed_callables_us": median_us(lambda: made(*inputs), calls),
        "reduce_overhead_us": median_us(lambda: compiled(*inputs), calls),
    }


def ledger_us(calls: int) -> float:
    """One check of a 400-tensor module, nothing changed."""
    from ostinato.recording.ledger import Ledger

    ledger = Ledger(Stack().cuda())
    return median_us(ledger.check, calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    with torch.inference_mode():
        for num_inputs in (1, 5, 20):
            inputs = [torch.randn(NUM_FLOATS, device="cuda") for _ in range(num_inputs)]
            rows[f"{num_inputs} inputs"] = measure(chain, inputs, options.calls)
        x = torch.randn(16, 64, device="cuda")
        rows["module of 400 tensors"] = measure(Stack().cuda(), [x], options.calls)
        rows["ledger, 400 tensors"] = {"check_us": ledger_us(options.calls)}
        rows["peers, 1 input"] = peers(
            [torch.randn(NUM_FLOATS, device="cuda")], options.calls
        )
    for name, row in rows.items():
        print(f"{name:24}", "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    write("host-overhead", rows, options.out)


if __name__ == "__main__":
    main()
