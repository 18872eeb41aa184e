"""Draws are live, follow their seeds, and none is consumed by warm-up, recording or gate."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ostinato.recording import recorder
from ostinato.recording.pieces import direct
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand

REGIONS: dict[str, Callable[[T], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "noise": lambda x: x + torch.randn_like(x) * torch.rand(()),
    "in_place": lambda x: torch.empty_like(x).normal_() + x,
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 2),
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "permutation": lambda x: x[torch.randperm(x.shape[0])],
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
}


def check_seeds(name: str, sizes: list[int]) -> None:
    fn = REGIONS[name]
    served = graphed(fn)
    held, want = [], []
    for results, call in ((held, served), (want, fn)):
        torch.manual_seed(3)
        results += [call(rand(i, n, 3)) for i, n in enumerate(sizes)]
        results.append(torch.rand(2))
    assert [content(h) for h in held] == [content(w) for w in want]
    assert served.stats().calls["exact"] == len(sizes)
    same = [served(rand(0, 8, 3)) for _ in range(4)]
    assert len({str(content(s)) for s in same}) > 1


@pytest.mark.parametrize("name", REGIONS)
def test_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(
        "undo.draws_are_kept", lambda: check_seeds(name, [2, 4, 2, 2, 4, 3]), monkeypatch
    )


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(sorted(REGIONS)), st.lists(st.integers(2, 4), min_size=1, max_size=8))
def test_any_order(name: str, sizes: list[int]) -> None:
    check_seeds(name, sizes)


def check_private_generators() -> None:
    """Passed in, closed over, or an attribute: each keeps its own sequence."""

    class Sampler:
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(5)

        def __call__(self, x: T, given_generator: torch.Generator) -> T:
            x = x + torch.rand(3, generator=self.generator)
            return x * torch.rand(3, generator=given_generator) + torch.rand(3)

    mine, theirs = Sampler(), Sampler()
    served = graphed(mine)
    held, want = [], []
    for results, call in ((held, served), (want, theirs)):
        torch.manual_seed(1)
        own = [torch.Generator().manual_seed(s) for s in (1, 2)]
        results += [call(rand(i, 3), own[i % 2]) for i in range(8)]
    assert [content(h) for h in held] == [content(w) for w in want]
    assert served.stats().calls["exact"] == 8 and len(served.recordings()) == 2


def test_private_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("undo.draws_are_kept", check_private_generators, monkeypatch)


def check_draws_of_python_and_numpy() -> None:
    """They cannot be recorded, and the trial calls give back what they draw."""
    for draw in (random.random, lambda: float(np.random.rand())):

        def fn(x: T, draw: Callable[[], float] = draw) -> T:
            return x * draw()

        served = graphed(fn)
        answers = []
        for call in (served, fn):
            random.seed(3)
            np.random.seed(3)
            answers.append([float(call(torch.ones(1))) for i in range(5)])
        assert answers[0] == answers[1] and len(set(answers[0])) == 5
        assert "[host-random]" in served.why().reason


def test_draws_of_python_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("undo.host_draws_are_kept", check_draws_of_python_and_numpy, monkeypatch)


def check_rare_draws() -> None:
    """A draw that decides one call in many is no difference that a gate could see."""
    served = graphed(lambda x: -x if random.random() < 1e-9 else x * 2)
    for _ in range(3):
        assert served(torch.ones(1)).item() == 2.0
    assert "[host-random]" in served.why().reason


def test_rare_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("rules.host-random", check_rare_draws, monkeypatch)


def check_draws_between_pieces() -> None:
    """A direct call may draw; what it draws in trials is given back."""

    def fn(x: T) -> T:
        return direct(lambda y: y + random.random(), x * 2) - 1

    served = graphed(fn)
    answers = []
    for call in (served, fn):
        random.seed(3)
        answers.append([float(call(torch.ones(1))) for i in range(5)])
    assert answers[0] == answers[1]


def test_draws_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("undo.host_draws_are_kept", check_draws_between_pieces, monkeypatch)


def test_draws_of_another_thread_are_not_the_callables(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws once while the first trial runs: the second trial shows whose draw it was."""
    others = [random.random]
    original = recorder.probe

    def with_another_thread(*args: Any, **kwargs: Any) -> Any:
        body, *rest = args

        def disturbed() -> Any:
            if others:
                others.pop()()
            return body()

        return original(disturbed, *rest, **kwargs)

    monkeypatch.setattr(recorder, "probe", with_another_thread)
    served = graphed(lambda x: x * 2)
    random.seed(3)
    random.random()
    after = random.getstate()
    random.seed(3)
    assert served(torch.ones(1)).item() == 2.0
    assert served.why().route == "exact" and random.getstate() == after


def test_a_region_that_seeds_is_refused() -> None:
    def fn(x: T) -> T:
        torch.manual_seed(0)
        return x + torch.rand(3)

    served = graphed(fn)
    assert content(served(rand(0, 3))) == content(fn(rand(0, 3)))
    assert "[reseed]" in served.why().reason
