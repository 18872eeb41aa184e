"""Any order of calls and changes, on regions that share a lane: every held result stays right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import ostinato
from ostinato import GraphConfig
from tests.mutations import assert_fails_under
from tests.recording.segments import TOKENS
from tests.recording.serving import T, content, graphed, rand


class Model(nn.Module):
    """Some of everything that a model does with its state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = 1.0
        self.register_buffer("steps", torch.zeros(()))
        self.tables: dict[int, T] = {}

    def table(self, n: int) -> T:
        if n not in self.tables:
            self.tables[n] = torch.arange(float(n)).unsqueeze(1)
        return self.tables[n]

    def forward(self, x: T, gain: float = 1.0) -> dict[str, Any]:
        self.steps.add_(1)  # type: ignore[operator]
        y = self.norm(self.first(x)) * self.scale + self.table(x.shape[0])
        y = torch.dropout(y, 0.5, self.training) * gain
        return {"y": y, "rows": y[1:], "steps": self.steps + 0, "x": x, "gain": gain}


def change(model: Model, what: int) -> None:
    match what:
        case 0:
            model.first.weight.mul_(1.5)
        case 1:
            model.first.weight = nn.Parameter(rand(7, 3, 3), requires_grad=False)
        case 2:
            model.train(not model.training)
        case 3:
            model.scale = 3.0 - model.scale
        case 4:
            model.tables.clear()
        case 5:
            model.first.bias.data = rand(8, 3)
        case 6:
            model.norm.running_mean = torch.ones(3)
        case 7:
            model.scale += 1
        case _:
            gained = model.norm.register_forward_hook(lambda m, a, out: out * 2)
            if what % 2:
                gained.remove()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(2, 5), st.sampled_from([1.0, 1, True, 2.0])),
        st.tuples(st.just("change"), st.integers(0, 9), st.just(0)),
    ),
    min_size=4,
    max_size=25,
)


def check_program(actions: list[tuple[str, int, Any]]) -> None:
    torch.manual_seed(0)
    mine = Model().requires_grad_(False).eval()
    theirs = Model().requires_grad_(False).eval()
    theirs.load_state_dict(mine.state_dict())
    served = graphed(mine)
    held, want = [], []
    with torch.no_grad():
        for number, (action, n, gain) in enumerate(actions):
            if action == "change":
                change(mine, n)
                change(theirs, n)
                continue
            for results, model in ((held, served), (want, theirs)):
                torch.manual_seed(number)
                results.append(model(rand(number, n, 3), gain))
    assert [content(h) for h in held] == [content(w) for w in want]
    assert content(list(mine.buffers())) == content(list(theirs.buffers()))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ACTIONS)
def test_any_program(actions: list[tuple[str, int, Any]]) -> None:
    check_program(actions)


CALL = ("call", 3, 1.0)
PROGRAMS = {
    "rebound": [CALL, CALL, ("change", 1, 0), CALL],
    "moved": [CALL, CALL, ("change", 5, 0), CALL],
    "scaled": [CALL, CALL, ("change", 3, 0), CALL, ("change", 3, 0), CALL],
    "trained": [CALL, CALL, ("change", 2, 0), CALL],
    "hooked": [CALL, CALL, ("change", 8, 0), CALL],
    "buffer": [CALL, CALL, ("change", 6, 0), CALL],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_ledger_each_change_is_missed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under("ledger.nothing_changes", lambda: check_program(PROGRAMS[name]), monkeypatch)


REGIONS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (lambda x: (x * 2).chunk(3, 1), {}),
    (lambda x: torch.softmax(x, -1).t(), {}),
    (lambda x: {"a": x.cumsum(0), "b": [x, x[:1] + 1]}, {}),
    (lambda x: x * 2 + 1, {"grows": {"x": {0: TOKENS}}}),
]


def check_several_regions(order: list[tuple[int, int]], recorded: float = 0.5) -> None:
    config = GraphConfig(min_hits=1, promote_hits=3)
    served = [graphed(fn, config, **options) for fn, options in REGIONS]
    served[3].record(rand(0, 3, 3))
    held = [served[which](rand(i, n, 3)) for i, (which, n) in enumerate(order)]
    want = [content(REGIONS[which][0](rand(i, n, 3))) for i, (which, n) in enumerate(order)]
    assert [content(h) for h in held] == want
    calls = [g.stats().calls for g, _ in zip(served, REGIONS, strict=True) if g._served]
    assert sum(c["direct"] for c in calls) <= (1 - recorded) * len(order)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=5, max_size=60))
def test_several_regions_on_one_lane(order: list[tuple[int, int]]) -> None:
    check_several_regions(order)


@pytest.mark.parametrize("mutation", ["results.borrowed_always", "buffers.never_loaded"])
def test_several_regions_can_fail(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = [(which, n) for n in (3, 4, 3) for which in (0, 1, 2, 0, 3)]
    assert_fails_under(mutation, lambda: check_several_regions(order), monkeypatch)


def test_every_route_gives_the_same_bytes() -> None:
    served = graphed(lambda x: x * 2 + 1, grows={"x": {0: TOKENS}})
    for n in (1, 8, 9, 32):
        x = rand(n, n, 3)
        answers = []
        for name in ("direct", "rung", "exact"):
            with ostinato.route(name):  # type: ignore[arg-type]
                answers.append(content(served(x)))
            assert served.why().route == name
        assert answers[0] == answers[1] == answers[2]
