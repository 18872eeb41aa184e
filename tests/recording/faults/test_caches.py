"""Caches built on first use, keys by identity, and memory that is never given back."""

from __future__ import annotations

import functools
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ostinato import GraphConfig
from ostinato.errors import UnkeyableArgument
from ostinato.recording.region import Region
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand, serving


class Rope(nn.Module):
    """The kinds of lazily built tables that models have."""

    cos: Any

    def __init__(self) -> None:
        super().__init__()
        self.cos, self.length = None, 0
        self.masks: dict[int, T] = {}
        self.recent: list[T] = []

    @functools.cache  # noqa: B019
    def angles(self, n: int) -> T:
        return torch.arange(n) * 0.1

    def forward(self, x: T) -> T:
        n = x.shape[0]
        if self.cos is None or self.length < n:
            self.cos, self.length = torch.cos(torch.arange(n) * 0.3), n
        if n not in self.masks:
            self.masks[n] = torch.tril(torch.ones(n, n))
        if not self.recent:
            self.recent.append(torch.ones(1))
        return (self.masks[n] @ x) * self.cos[:n] + self.angles(n) + self.recent[0]


def check_lazy_tables() -> None:
    """Several recordings read tables that one of them made: none may lie in its memory."""
    mine, theirs = Rope(), Rope()
    served, other = graphed(mine), graphed(lambda x: mine(x) * 2)
    held, want = [], []
    for i, n in enumerate([3, 5, 4, 3, 5, 8, 3, 4, 8]):
        held += [served(rand(i, n)), other(rand(i, n))]
        want += [theirs(rand(i, n)), theirs(rand(i, n)) * 2]
    assert [content(h) for h in held] == [content(w) for w in want]
    assert served.stats().calls["exact"] >= 6 and other.stats().calls["exact"] >= 6
    mine.masks.clear()
    mine.cos = None
    Rope.angles.cache_clear()
    gc.collect()
    fresh = [torch.full((n, n), 9.0) for n in (3, 4, 5, 8) for _ in range(5)]
    for i, n in enumerate([8, 3, 5, 4] * 2):
        assert content(served(rand(i, n))) == content(theirs(rand(i, n)))
    assert fresh and served.stats().num_refused == 0


def test_lazy_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("ledger.nothing_changes", check_lazy_tables, monkeypatch)


def check_identities() -> None:
    """An object made where another one was is not that one, and an unknown one is no key at all."""

    class Option:
        def __init__(self, value: float) -> None:
            self.value = value

    served = graphed(lambda x, o: x * o.value)
    for value in (1.0, 2.0):
        with pytest.raises(UnkeyableArgument, match="Option"):
            served(rand(0, 2), Option(value))

    def by_generator(x: T, generator: torch.Generator) -> T:
        return x * torch.rand(1, generator=generator)

    served = graphed(by_generator)
    for seed in range(12):
        generator, twin = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        assert content(served(rand(0, 2), generator)) == content(by_generator(rand(0, 2), twin))
        del generator, twin
        gc.collect()


def test_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("tree.unknown_types_are_keys", check_identities, monkeypatch)


def check_bounded() -> None:
    region = Region("bounded", lambda x: (x * 2).cumsum(0))
    with serving(region, budget=30_000) as served:
        random.seed(1)
        for i in range(150):
            n = random.randint(1, 500)
            assert content(served.call((rand(i, n),), {})) == content((rand(i, n) * 2).cumsum(0))
            assert served.runner.budget.held() <= 30_000
        assert sum(len(g.members) for g in served.runner.cache) < 60


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("cache.no_limit", check_bounded, monkeypatch)


@pytest.mark.parametrize("kind", ["inputs", "results", "weights"])
def test_nothing_of_a_closed_graph_is_kept(kind: str) -> None:
    layer = nn.Linear(50, 50).requires_grad_(False)
    served: Callable[..., Any] | None = graphed(layer)
    x = rand(0, 2, 50)
    y = served(x)  # type: ignore[misc]
    what = {"inputs": x, "results": y, "weights": layer.weight}[kind]
    reference = weakref.ref(what.untyped_storage())
    served.close()  # type: ignore[union-attr]
    del what, x, y, layer, served
    gc.collect()
    assert reference() is None


def test_many_changes_of_values_do_not_pile_up() -> None:
    model = nn.Identity()
    model.scale = 0.0  # type: ignore[assignment]
    served = graphed(lambda x: model(x) * model.scale, GraphConfig(min_hits=2))
    for i in range(600):
        model.scale = float(i)  # type: ignore[assignment]
        served(torch.ones(1))
    ledger = served._only.ledger  # type: ignore[union-attr]
    assert len(ledger._variants) <= 256
