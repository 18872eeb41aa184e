"""Serves calls by recordings and compares them, held to the end, with the plain callable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import ostinato
from ostinato import GraphConfig
from ostinato.recording import tree
from ostinato.recording.cache import Budget
from ostinato.recording.graphed import Graphed
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from ostinato.recording.served import Served
from ostinato.recording.tape import TapeLane
from tests.recording.tape_checks import bytes_of

T = torch.Tensor
AT_ONCE = GraphConfig(min_hits=1)


def graphed(fn: Callable[..., Any], config: GraphConfig = AT_ONCE, **options: Any) -> Graphed:
    """Recorded at the first call."""
    made: Graphed = ostinato.graph(fn, config=config, **options)
    return made


@contextmanager
def serving(
    region: Region, config: GraphConfig = AT_ONCE, budget: int = 1 << 28
) -> Iterator[Served]:
    """A region on a runner of its own, poison on."""
    runner = Runner(TapeLane(poison=True), Budget(budget))
    try:
        yield runner.serve(region, config)
    finally:
        runner.close()


def settle(served: Served | Graphed) -> None:
    """Wait until what is recorded off the path has been recorded."""
    if isinstance(served, Graphed):
        served = next(iter(served._served.values()))
    served.runner.lane.run_when_idle(lambda: None, is_long=True).result(timeout=60)


def content(value: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Structure, and type, shape and bytes of each tensor: equal only for the same answer."""
    leaves: list[T] = []
    structure = tree.flatten(value, leaves)
    return structure, [(t.dtype, t.shape, bytes_of(t) if t.numel() else b"") for t in leaves]


def rand(seed: int, *shape: int) -> T:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_calls(
    fn: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    *,
    recorded: float = 0.3,
    using: Callable[..., Any] | None = None,
) -> Graphed | Any:
    """Call in this order, hold all results, compare bytes; at least ``recorded`` by replay."""
    served = using if using is not None else graphed(fn)
    before = copy.deepcopy(calls)
    held = [served(*args) for args in calls]
    want = [content(fn(*args)) for args in before]
    for number, (got, expected) in enumerate(zip(held, want, strict=True)):
        assert content(got) == expected, f"call {number}"
    if isinstance(served, Graphed):
        stats = served.stats()
        share = 1 - stats.calls["direct"] / sum(stats.calls.values())
        assert share >= recorded, f"{share:.0%} recorded: {dict(stats.reasons)} {stats.refusals}"
    return served
