"""Numbers that Python holds, in counters, coefficients, attributes: direct or right, never old."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import ostinato
from ostinato.errors import RecordingRefused
from tests.mutations import assert_fails_under
from tests.recording.serving import T, check_calls, content, graphed, rand

Factory = Callable[[], Callable[..., Any]]


class Scheduler:
    table = (1.0, 0.5, 0.25, 0.125)

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, x: T) -> T:
        x = x * self.table[self.step % 4]
        self.step += 1
        return x


def counter() -> Callable[[T], T]:
    count = 0

    def fn(x: T) -> T:
        nonlocal count
        count += 1
        return x * count

    return fn


def generator() -> Callable[[T], T]:
    numbers = itertools.count(1)

    def fn(x: T) -> T:
        return x * next(numbers)

    return fn


def accumulator() -> Callable[[T], T]:
    seen: list[int] = []

    def fn(x: T) -> T:
        seen.append(len(seen))
        return x + len(seen)

    return fn


def item() -> Callable[[T], T]:
    return lambda x: x * x.abs().max().item()


def branch() -> Callable[[T], T]:
    return lambda x: x * 2 if x.sum() > 0 else x * 3


def toggle() -> Callable[[T], T]:
    state = {"on": False}

    def fn(x: T) -> T:
        state["on"] = not state["on"]
        return x * (2 if state["on"] else 3)

    return fn


def slot() -> Callable[[T], T]:
    class Slots:
        __slots__ = ("n",)

    held = Slots()
    held.n = 0

    def fn(x: T) -> T:
        held.n += 1
        return x * held.n

    return fn


DRIFTING: dict[str, Factory] = {
    "scheduler": Scheduler,
    "counter": counter,
    "accumulator": accumulator,
    "item": item,
    "branch": branch,
    "toggle": toggle,
    "slot": slot,
}


def check_drift(make: Factory) -> None:
    mine, theirs = graphed(make()), make()
    held = [mine(rand(i, 2)) for i in range(9)]
    assert [content(h) for h in held] == [content(theirs(rand(i, 2))) for i in range(9)]


@pytest.mark.parametrize("name", DRIFTING)
def test_drifting_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = "numbers.baked"
    assert_fails_under(mutation, lambda: check_drift(DRIFTING[name]), monkeypatch)


def test_what_changes_each_call_is_not_tried_for_ever() -> None:
    served = graphed(counter())
    for i in range(50):
        served(rand(i, 2))
    assert served.stats().num_refused <= 4


def check_arguments(values: list[Any]) -> None:
    check_calls(lambda x, v: x * v, [(rand(0, 2), v) for v in values * 2], recorded=0)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.one_of(st.integers(-3, 3), st.floats(width=32), st.booleans()), max_size=8))
def test_numbers_among_the_arguments(values: list[Any]) -> None:
    if values:
        check_arguments(values)


def test_numbers_among_the_arguments_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(
        "key.values_are_ignored", lambda: check_arguments([1, 2.0, True]), monkeypatch
    )


class Masked(nn.Module):
    mask: Any
    limit: Any

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.limit = torch.ones(3), 10

    def forward(self, x: T) -> T:
        half = x.to(torch.float64)  # a new tensor at each call
        return (half * self.mask).clamp(max=self.limit).to(x.dtype) * self.mask


def attributes() -> Iterator[Callable[[Masked], Any]]:
    yield lambda m: setattr(m, "mask", torch.zeros(3))
    yield lambda m: setattr(m, "mask", m.mask.double())
    yield lambda m: setattr(m, "mask", m.mask.clone())
    yield lambda m: m.mask.fill_(0.5)
    yield lambda m: setattr(m, "limit", 0)
    yield lambda m: setattr(m, "limit", False)
    yield lambda m: setattr(m, "limit", 0.0)


def check_attributes() -> None:
    model = Masked()
    served = graphed(model)
    for i, act in enumerate(attributes()):
        for j in range(2):
            x = rand(2 * i + j, 3) * 9
            assert content(served(x)) == content(model(x))
            assert served.why().route == "exact"
        act(model)
    assert content(served(rand(0, 3))) == content(model(rand(0, 3)))


def test_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("ledger.nothing_changes", check_attributes, monkeypatch)


def check_clocks_and_iterators() -> None:
    """The ledger refuses an iterator; a clock it cannot see, but the gate sees that the direct call
    drifts.
    """
    for make, reason in ((generator, "[unwatched] fn.numbers is an iterator"), (clock, "[gate")):
        fn = make()
        served = graphed(fn)
        answers = [float(served(torch.ones(1))) for _ in range(6)]
        assert len(set(answers)) == 6 and reason in served.why().reason


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: T) -> T:
        self.calls += 1
        return x * self.calls


def test_a_counter_has_a_reason() -> None:
    """Its key is new at each call, so that nothing is ever recorded: that is said by name."""
    model = Counted()
    served = ostinato.graph(model)
    for number in range(1, 12):
        assert served(torch.ones(1)).item() == number
    assert served.why().reason == (
        "the Python values that it reads change with every call: fn.calls: 9 -> 10"
    )
    with pytest.raises(RecordingRefused, match=r"\[python-state\] each call changes .*fn.calls"):
        served.record(torch.ones(1))
    model.forward = lambda x: x + 1  # type: ignore[method-assign]
    for _ in range(3):
        assert served(torch.ones(1)).item() == 2.0
    assert served.why().route == "exact"


def clock() -> Callable[[T], T]:
    return lambda x: x * (time.perf_counter_ns() % 1_000_003)


def test_clocks_and_iterators(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("gate.accepts_all", check_clocks_and_iterators, monkeypatch)
