"""How much host time does a replayed call cost beyond a hand-written one?

A region of 700 kernels; host time until the call returned, queue empty at the start, medians.
Beside it, in the same run: the hand-written ``copy_`` + ``replay()`` + ``clone()``,
``make_graphed_callables`` and ``torch.compile(mode="reduce-overhead")``. Needs an NVIDIA GPU.

The host is shared, and for seconds at a time everything on it takes three times as long. So all
cases are measured in each of several rounds, and of each case's rounds the one counts in which the
hand-written call was fastest; the others are reported too.

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
from ostinato.recording.ledger import Ledger

NUM_KERNELS = 700
NUM_FLOATS = 1 << 18  # 1 MB
NUM_ROUNDS = 8
WARM_UP_TURNS = 20


def medians_us(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median host time of each call in microseconds.

    The device is idle when a call begins. The calls take turns one by one, so that a drift of the
    machine's clocks hits all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + WARM_UP_TURNS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = call()
            elapsed = time.perf_counter() - start
            del result
            if turn >= WARM_UP_TURNS:
                times[name].append(elapsed)
    torch.cuda.synchronize()
    return {name: round(statistics.median(t) * 1e6, 2) for name, t in times.items()}


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


class Case:
    """A recorded call beside the hand-written one; both are checked against the direct call."""

    def __init__(self, fn: Any, inputs: list[torch.Tensor]) -> None:
        hand = by_hand(fn, inputs)
        self._graphed = graphed = ostinato.graph(fn).record(*inputs)
        want = fn(*inputs)
        if not (torch.equal(graphed(*inputs), want) and torch.equal(hand(), want)):
            raise SystemExit("a recording is wrong")
        self._calls = {"by_hand_us": hand, "ostinato_us": lambda: graphed(*inputs)}
        self._rounds: list[dict[str, float]] = []

    def measure(self, repeats: int) -> None:
        self._rounds.append(medians_us(self._calls, repeats))

    def result(self, repeats: int) -> dict[str, Any]:
        """The round in which the hand-written call was fastest, and what each round gave."""
        stats = self._graphed.stats()
        if stats.calls["exact"] < repeats * len(self._rounds) or stats.calls["direct"]:
            raise SystemExit(f"not every call was served by a recording: {stats.calls}")
        self._graphed.close()
        rounds = self._rounds
        quietest = min(rounds, key=lambda r: r["by_hand_us"])
        over = [round(r["ostinato_us"] - r["by_hand_us"], 2) for r in rounds]
        each = [r["by_hand_us"] for r in rounds]
        return {
            **quietest,
            "over_us": over[rounds.index(quietest)],
            "over_us_each_round": over,
            "by_hand_us_each_round": each,
        }


def peers(inputs: list[torch.Tensor], repeats: int) -> dict[str, float]:
    made = torch.cuda.make_graphed_callables(chain, tuple(x.clone() for x in inputs))
    compiled = torch.compile(chain, mode="reduce-overhead")
    for _ in range(4):
        compiled(*inputs)
    return medians_us(
        {
            "make_graphed_callables_us": lambda: made(*inputs),
            "reduce_overhead_us": lambda: compiled(*inputs),
        },
        repeats,
    )


def ledger_us(repeats: int) -> dict[str, float]:
    """One check of a 400-tensor module, nothing changed."""
    ledger = Ledger(Stack().cuda())
    return medians_us({"check_us": ledger.check}, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    with torch.inference_mode():
        cases: dict[str, Case] = {}
        for num_inputs in (1, 5, 20):
            inputs = [torch.randn(NUM_FLOATS, device="cuda") for _ in range(num_inputs)]
            cases[f"{num_inputs} inputs"] = Case(chain, inputs)
        x = torch.randn(16, 64, device="cuda")
        cases["module of 400 tensors"] = Case(Stack().cuda(), [x])
        for _ in range(NUM_ROUNDS):
            for case in cases.values():
                case.measure(options.calls)
        rows: dict[str, Any] = {n: case.result(options.calls) for n, case in cases.items()}
        rows["ledger, 400 tensors"] = ledger_us(options.calls)
        rows["peers, 1 input"] = peers([torch.randn(NUM_FLOATS, device="cuda")], options.calls)
    for name, row in rows.items():
        print(f"{name:24}", "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    write("host-overhead", rows, options.out)


if __name__ == "__main__":
    main()
