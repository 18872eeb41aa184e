"""Admission, growth, regions, counters, settings: small rules, each against a reference."""

from __future__ import annotations

import copy
import gc
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato
from ostinato.errors import ConfigError, RecordingRefused
from ostinato.recording.admission import DirectTimes, best_of, is_worth_it
from ostinato.recording.config import CPU_BUDGET_BYTES, GraphConfig, resolve_budget
from ostinato.recording.graphed import Graphed
from ostinato.recording.growth import infer, lengths
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import Region
from ostinato.recording.stats import EXACT, Counters, Route, Stats

A, B = Axis("a", top=64, multiple=2), Axis("b", top=64)


@given(st.dictionaries(st.integers(1, 50), st.floats(0.1, 1e4), min_size=1, max_size=8))
def test_direct_times_are_linear_between_neighbours(points: dict[int, float]) -> None:
    times = DirectTimes()
    for size, value in points.items():
        times.add(size, 1.0)
        times.add(size, value)
    low, high = min(points), max(points)
    for size in range(0, 60):
        got = times.estimate(size)
        assert got is not None
        below = max((s for s in points if s <= size), default=low)
        above = min((s for s in points if s >= size), default=high)
        a, b = points[below], points[above]
        share = 0.0 if above == below else (size - below) / (above - below)
        want = points[low] if size < low else points[high] if size > high else a + (b - a) * share
        assert got == pytest.approx(want)
    assert DirectTimes().estimate(3) is None


def test_what_is_worth_it() -> None:
    assert is_worth_it(None, 1.0) and is_worth_it(1.0, None) and is_worth_it(102.0, 100.0)
    assert not is_worth_it(102.1, 100.0)


def test_best_of_takes_the_least_of_the_given_clock() -> None:
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0])
    calls: list[int] = []
    assert best_of(lambda: calls.append(1), lambda: next(ticks), repeats=3) == 2.0
    assert len(calls) == 3


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 4), st.integers(1, 3))
def test_growth_is_found_by_calling_twice(a: int, b: int, plus: int, times: int) -> None:
    def shapes(sizes: Mapping[Axis, int]) -> list[torch.Size]:
        half = torch.Size([sizes[A] // 2 + plus, 7])
        return [torch.Size([sizes[A] * times + plus, sizes[B], 3]), torch.Size([4]), half]

    growth = infer(shapes, {A: 2 * a, B: b})
    for sizes in ({A: 6, B: 5}, {A: 2, B: 1}):
        want = [[sizes[A] * times + plus, sizes[B]], [], [sizes[A] // 2 + plus]]
        assert [list(d.values()) for d in lengths(growth, sizes)] == want
    with pytest.raises(RecordingRefused, match="multiple of 2"):
        lengths(growth, {A: 3, B: 1})


def test_a_dimension_that_follows_two_axes_is_refused() -> None:
    with pytest.raises(RecordingRefused, match="follows both 'a' and 'b'"):
        infer(lambda s: [torch.Size([s[A] * s[B]])], {A: 2, B: 3})


def region(**options: Any) -> Region:
    return Region("r", lambda *a: a, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fn": 3}, "callable"),
        ({"state": [torch.zeros(1)]}, "gate_inputs"),
        (
            {"writes": frozenset({1}), "in_place": frozenset({1, 2})},
            r"\[1\] in writes and in_place",
        ),
        ({"uploads": frozenset({0}), "in_place": frozenset({0})}, "uploads"),
    ],
)
def test_regions_that_contradict_themselves(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Region(**{"name": "r", "fn": len, **options})


def test_sizes_of_a_call() -> None:
    made = region(grows={0: {0: Grows(A)}, 1: {0: Grows(A, plus=1), 1: Grows(B, times=2)}})
    assert made.axes == (A, B)
    assert made.sizes_of([torch.zeros(4), torch.zeros(5, 6)]) == {A: 4, B: 3}
    with pytest.raises(ConfigError, match="'a' is 4 and, by input 1, 5"):
        made.sizes_of([torch.zeros(4), torch.zeros(6, 6)])
    with pytest.raises(ConfigError, match="has 1 tensors"):
        made.sizes_of([torch.zeros(4)])


def test_why_sizes_differ() -> None:
    made = region(grows={0: {0: Grows(A)}, 1: {0: Grows(A, plus=1), 1: Grows(B, times=2)}})
    assert made.why_sizes_differ([torch.zeros(4), torch.zeros(5, 6)]) is None
    for second, match in (
        (torch.zeros(6, 6), "axis 'a' is 4 and, by input 1, 5"),
        (torch.zeros(5, 3), r"dimension 1 of input 1 has 3 elements; expected 2 \* b"),
        (torch.zeros(0, 4), r"dimension 0 of input 1 has 0 elements; expected a \+ 1"),
    ):
        reason = made.why_sizes_differ([torch.zeros(4), second])
        assert reason is not None and re.fullmatch(match, reason)
    with pytest.raises(ConfigError, match="dimension 1 of input 1 grows, but the input has 1"):
        made.why_sizes_differ([torch.zeros(4), torch.zeros(5)])


def test_counters_lose_nothing() -> None:
    counters = Counters()
    route = Route("direct", "x")

    def count() -> None:
        for _ in range(500):
            counters.count(route)
            counters.add("n", 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.count_exact()
    assert counters.routes() == {route: 2000, EXACT: 1} and counters.number("n") == 2000
    assert counters.last() == EXACT


def test_a_snapshot_is_frozen() -> None:
    stats = Stats({}, {}, 0, 0, 0, 0, 0.0, 6, 2, 0, 0, 0)
    assert stats.waste == 0.25
    with pytest.raises(AttributeError):
        stats.num_evicted = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "fast"},
        {"verify": "maybe"},
        {"min_hits": 0},
        {"promote_hits": 0},
        {"ladder_ratio": 1.0},
        {"budget_bytes": 0},
        {"tolerance": 0.0},
        {"min_hits": "2"},
        {"min_hits": 1.5},
        {"promote_hits": True},
        {"ladder_ratio": "1.5"},
        {"ladder_ratio": float("inf")},
        {"budget_bytes": 1e9},
        {"tolerance": "small"},
        {"cache_dir": 5},
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=rf"GraphConfig\.{name} is {value!r}; expected"):
        GraphConfig(**options)


def test_the_budget_is_resolved_once() -> None:
    cpu = torch.device("cpu")
    assert resolve_budget(GraphConfig(), cpu).budget_bytes == CPU_BUDGET_BYTES
    given_config = GraphConfig(budget_bytes=5)
    assert resolve_budget(given_config, cpu) is given_config


def test_graph_says_what_is_wrong_with_its_arguments() -> None:
    with pytest.raises(ConfigError, match="callable"):
        ostinato.graph(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mode='ladder'"):
        ostinato.graph(len, config=GraphConfig(mode="ladder"))
    with pytest.raises(ConfigError, match="no parameter 'z'"):
        ostinato.graph(lambda x: x, writes=["z"])
    with pytest.raises(ConfigError, match="not been called"):
        ostinato.graph(lambda x: x).stats()


def test_stats_and_why_outlive_close() -> None:
    served = ostinato.graph(lambda x: x * 2, config=GraphConfig(min_hits=1))
    for _ in range(3):
        served(torch.ones(2))
    before = served.stats()
    served.close()
    after = served.stats()
    assert (after.calls, after.num_recorded) == (before.calls, before.num_recorded)
    assert (before.num_recordings, after.num_recordings, after.bytes_held) == (1, 0, 0)
    assert served.why() == EXACT
    served.close()
    served(torch.ones(2))
    assert served.stats().calls["exact"] == 4 and served.stats().num_recordings == 1


def test_attributes_are_set_on_what_is_wrapped() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor: float = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    module = Scale()
    served = ostinato.graph(module, config=GraphConfig(min_hits=1))
    assert [served(torch.ones(1)).item() for _ in range(3)] == [2.0] * 3
    served.factor = 3.0
    assert module.factor == 3.0 and served(torch.ones(1)).item() == 3.0
    with pytest.raises(AttributeError, match="set it on what was given"):
        served._private = 1
    del served.factor
    assert not hasattr(module, "factor") and not hasattr(served, "factor")


class Layer(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), factor), requires_grad=False)

    @ostinato.graph(config=GraphConfig(min_hits=1))
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    @ostinato.graph(config=GraphConfig(min_hits=1), writes=["cache"])
    def add(self, cache: torch.Tensor) -> torch.Tensor:
        return cache.add_(self.weight)

    shared = ostinato.graph(torch.nn.Softsign())


def test_methods_are_decorated() -> None:
    layers = [Layer(2.0), Layer(3.0)]
    layers.append(copy.deepcopy(layers[0]))
    layers[2].weight.fill_(4.0)
    for _ in range(3):
        answers = [layer(torch.ones(2))[0].item() for layer in layers]
        assert answers == [2.0, 3.0, 4.0]
    assert [layer.forward.stats().calls["exact"] for layer in layers] == [3, 3, 3]
    again = copy.deepcopy(layers[0])
    again.weight.fill_(5.0)
    assert again(torch.ones(2))[0].item() == 5.0 and layers[0](torch.ones(2))[0].item() == 2.0
    cache = torch.zeros(2)
    for _ in range(3):
        layers[0].add(cache)
    assert cache.tolist() == [6.0, 6.0] and layers[0].add.why().route == "exact"
    assert isinstance(Layer.forward, Graphed) and layers[0].shared is layers[1].shared
    gone = weakref.ref(layers.pop())
    gc.collect()
    assert gone() is None


def test_a_method_of_an_object_without_attributes() -> None:
    class Slotted:
        __slots__ = ()

        @ostinato.graph
        def double(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with pytest.raises(ConfigError, match="which has no __dict__"):
        Slotted().double(torch.ones(1))


def test_graph_is_a_decorator_and_passes_attributes_through() -> None:
    @ostinato.graph(config=GraphConfig(min_hits=1))
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
    module = torch.nn.Linear(2, 3)
    assert ostinato.graph(module).out_features == 3
    with pytest.raises(AttributeError):
        _ = ostinato.graph(module).nothing


@settings(max_examples=30)
@given(st.integers(1, 3))
def test_route_equality(n: int) -> None:
    assert Route("rung", "padded", (("n", n),)) == ("rung", "padded", (("n", n),))
