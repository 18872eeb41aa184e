"""Line 9, budget: never above it, in any order, and every answer right."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.errors import RecordingRefused
from ostinato.recording.cache import Budget
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from ostinato.recording.tape import TapeLane
from tests.mutations import assert_fails_under
from tests.recording.serving import AT_ONCE, T, content, settle
from tests.recording.serving import rand as tensor

LIMIT = 40_000


def fn(x: T, y: T) -> tuple[T, T]:
    z = torch.relu(x + 1)
    return z * y, z.sum(0)


def check_orders(shapes: list[tuple[int, int]], limit: int = LIMIT) -> tuple[int, int]:
    """Recorded calls and evictions; the budget is asked after each call."""
    runner = Runner(TapeLane(poison=True), Budget(limit))
    served = runner.serve(Region("fn", fn), AT_ONCE)
    held, want = [], []
    try:
        for seed, shape in enumerate(shapes):
            x, y = tensor(seed, *shape), tensor(seed + 1, *shape)
            held.append(served.call((x, y), {}))
            want.append(content(fn(x, y)))
            with runner.lane.lock:
                assert runner.budget.held() <= limit
        settle(served)
        assert runner.budget.held() <= limit
        assert [content(h) for h in held] == want
        stats = runner.stats(served)
        return stats.calls["exact"], stats.num_evicted
    finally:
        runner.close()
        assert runner.budget.held() == 0


def check_300_shapes() -> None:
    random.seed(0)
    shapes = [(random.randint(0, 12), random.randint(1, 40)) for _ in range(300)]
    recorded, evicted = check_orders(shapes)
    assert recorded >= 100 and evicted > 50


def test_300_random_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("cache.no_limit", check_300_shapes, monkeypatch)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=25),
    st.integers(1_000, 20_000),
)
def test_any_order_and_any_limit(shapes: list[tuple[int, int]], limit: int) -> None:
    check_orders(shapes, limit)


def test_an_evicted_key_that_stays_hot_is_recorded_again_off_the_path() -> None:
    runner = Runner(TapeLane(poison=True), Budget(6_000))
    served = runner.serve(Region("fn", fn), AT_ONCE)
    for n in (100, 120, 140):
        served.call((tensor(n, 1, n), tensor(n, 1, n)), {})
    assert runner.cache.num_evicted > 0
    x = tensor(0, 1, 100)
    routes = []
    for _ in range(3):
        y = x.clone()
        assert content(served.call((x, y), {})) == content(fn(x, y))
        routes.append(served.counters.last().route)  # type: ignore[union-attr]
        settle(served)
    assert routes == ["direct", "exact", "exact"]
    runner.close()


def test_what_alone_does_not_fit_is_refused_by_name() -> None:
    runner = Runner(TapeLane(poison=True), Budget(1_000))
    served = runner.serve(Region("fn", fn), AT_ONCE)
    x = tensor(0, 1, 1000)
    assert content(served.call((x, x), {})) == content(fn(x, x))
    assert "[budget]" in served.counters.last().reason  # type: ignore[union-attr]
    assert runner.budget.held() == 0
    runner.close()


def test_the_budget_is_shared_with_other_owners() -> None:
    budget = Budget(10_000)
    runner = Runner(TapeLane(poison=True), budget)
    served = runner.serve(Region("fn", fn), AT_ONCE)
    budget.reserve("kv cache", 8_000)
    x = tensor(0, 1, 200)
    served.call((x, x), {})
    assert "[budget]" in served.counters.last().reason  # type: ignore[union-attr]
    budget.release("kv cache")
    served.record((x, x), {})
    with pytest.raises(RecordingRefused, match="kv cache wants 9000 bytes"):
        budget.reserve("kv cache", 9_000)
    budget.reserve("kv cache", budget.limit_bytes - budget.held())
    assert budget.held() == budget.limit_bytes
    runner.close()
