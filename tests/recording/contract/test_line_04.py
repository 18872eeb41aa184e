"""Line 4, warm-up: everything runs first, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ostinato.recording import recorder
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand


def check_random_draws() -> None:
    """The sequence of draws is the direct one's, the recording of it included."""
    served = graphed(lambda x: F.dropout(x, 0.5) + torch.rand(3))
    x = torch.ones(3)
    torch.manual_seed(5)
    got = [served(x) for _ in range(6)]
    torch.manual_seed(5)
    want = [F.dropout(x, 0.5) + torch.rand(3) for _ in range(6)]
    assert [content(g) for g in got] == [content(w) for w in want]
    assert served.stats().calls["exact"] == 6


def check_buffers() -> None:
    def make() -> tuple[nn.BatchNorm1d, dict[str, T]]:
        return nn.BatchNorm1d(3).requires_grad_(False), {"steps": torch.zeros(1)}

    def step(norm: nn.BatchNorm1d, state: dict[str, T], x: T) -> T:
        state["steps"] += 1
        return norm(x) + state["steps"]  # type: ignore[no-any-return]

    (norm, state), (norm2, state2) = make(), make()
    served = graphed(lambda x: step(norm, state, x))
    for i in range(5):
        assert content(served(rand(i, 4, 3))) == content(step(norm2, state2, rand(i, 4, 3)))
        assert content([*norm.buffers(), state["steps"]]) == content(
            [*norm2.buffers(), state2["steps"]]
        )
    assert served.stats().calls["exact"] == 5


def check_python_attributes() -> None:
    class Counter:
        steps = 0

        def __init__(self) -> None:
            self.calls = 0
            self.seen: list[Any] = []

    def step(c: Counter, x: T) -> T:
        Counter.steps += 1
        c.calls += 1
        c.seen.append(c.calls)
        return x * c.calls + len(c.seen)

    mine, theirs = Counter(), Counter()
    served = graphed(lambda x: step(mine, x))
    got = [served(torch.ones(2)) for _ in range(4)]
    assert (mine.calls, Counter.steps, mine.seen) == (4, 4, [1, 2, 3, 4])
    want = [step(theirs, torch.ones(2)) for _ in range(4)]
    assert [content(g) for g in got] == [content(w) for w in want]


def check_attributes_after_a_refusal() -> None:
    calls = [0]

    def step(x: T) -> T:
        calls[0] += 1
        return x * float(x.sum())

    served = graphed(step)
    for i in range(4):
        served(torch.ones(2))
        assert calls == [i + 1]
    assert served.why().route == "direct"


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        ("undo.draws_are_kept", check_random_draws),
        ("undo.no_clone_before_write", check_buffers),
        ("ledger.no_revert", check_python_attributes),
        ("ledger.no_revert", check_attributes_after_a_refusal),
    ],
)
def test_no_trace(
    mutation: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(mutation, check, monkeypatch)


def test_large_undeclared_state_is_refused_and_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        cache = torch.zeros(1000)

        def fn(x: T) -> T:
            cache.add_(x)
            return cache * 2

        served = graphed(fn)
        for i in range(1, 4):
            assert float(served(torch.ones(1000))[0]) == 2 * i
        assert served.why().reason.startswith("refused: [large-state]")

    monkeypatch.setattr(recorder, "MAX_STATE_BYTES", 3999)
    assert_fails_under("rules.large-state", check, monkeypatch)


def check_declared_state() -> None:
    """Trial calls write to scratch rows; the caller's rows change once a call."""
    cache = torch.zeros(4, 8)

    def step(x: T, row: T) -> T:
        cache.index_add_(0, row, x.unsqueeze(0))
        return cache.sum(0) + x

    scratch = [((rand(9, 8), torch.tensor([3])), {})]
    served = graphed(step, state=[cache], gate_inputs=scratch)
    want = torch.zeros(4, 8)
    for i in range(4):
        x, row = rand(i, 8), torch.tensor([i % 3])
        before = cache.clone()
        got = served(x, row)
        want.copy_(before)
        want[i % 3] += x
        assert torch.equal(cache[:3], want[:3])
        assert content(got) == content(cache.sum(0) + x)
    assert served.why().route == "exact"


def test_declared_state_is_written_by_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("recorder.trials_use_the_call", check_declared_state, monkeypatch)
