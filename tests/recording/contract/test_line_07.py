"""Line 7, weights: updates show, and what moved is never read."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.mutations import assert_fails_under
from tests.recording.serving import content, graphed, rand
from tests.recording.test_ledger import MOVES, VALUES, Model

REAL = {**MOVES, **VALUES}
NOT_CALLABLE = {
    "resize",
    "freed",
    "narrowed",
    "cast",
    "forward",
    "deleted",
}  # the direct call fails, or is odd


def check_after(change: Callable[[Model], object]) -> None:
    torch.manual_seed(0)
    model = Model().requires_grad_(False).eval()
    served = graphed(model)
    x = rand(0, 2, 3)
    with torch.no_grad():
        for i in range(2):
            assert content(served(x + i)) == content(model(x + i))
        assert served.why().route == "exact"
        change(model)
        gc.collect()
        held = [torch.randn(3, 3) for _ in range(20)]  # takes over memory that was given back
        for i in range(3):
            assert content(served(x + i)) == content(model(x + i))
        assert served.why().route == "exact" and held


@pytest.mark.parametrize("name", sorted(REAL.keys() - NOT_CALLABLE))
def test_never_a_stale_answer(name: str) -> None:
    check_after(REAL[name])


CHANGES_THE_ANSWER = [
    "data",
    "re-created",
    "tuple",
    "train",
    "hides_class",
    "filled_dict",
    "set_item",
]


@pytest.mark.parametrize("name", CHANGES_THE_ANSWER)
def test_without_the_ledger_answers_are_stale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("ledger.nothing_changes", lambda: check_after(REAL[name]), monkeypatch)


def test_in_place_updates_show_at_the_next_replay() -> None:
    layer = nn.Linear(3, 3).requires_grad_(False)
    served = graphed(layer)
    x = rand(0, 2, 3)
    for i in range(4):
        assert content(served(x)) == content(layer(x))
        layer.weight.add_(i)
        layer.load_state_dict(nn.Linear(3, 3).state_dict())
    assert served.stats().calls["exact"] == 4 and served.stats().num_recorded == 1


def test_a_cast_and_a_freed_weight_fail_as_the_direct_call_does() -> None:
    layer = nn.Linear(3, 3).requires_grad_(False)
    served = graphed(layer)
    x = rand(0, 2, 3)
    served(x)
    layer.double()
    with pytest.raises(RuntimeError):
        served(x)
    assert content(served(x.double())) == content(layer(x.double()))
    del layer.bias
    with pytest.raises(AttributeError):
        served(x.double())


def test_training_and_evaluation_keep_their_recordings() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).requires_grad_(False)
    served = graphed(model)
    x = rand(0, 2, 3)
    for i in range(6):
        model.train(i % 2 == 0)
        torch.manual_seed(i)
        got = served(x)
        torch.manual_seed(i)
        assert content(got) == content(model(x))
    assert served.stats().num_recorded == 2 and served.stats().calls["exact"] == 6


def test_recordings_of_moved_weights_are_given_back() -> None:
    layer = nn.Linear(64, 64).requires_grad_(False)
    served = graphed(layer)
    held = []
    for _ in range(4):
        served(rand(0, 2, 64))
        held.append(served.stats().device_bytes_held)
        layer.weight = nn.Parameter(torch.randn(64, 64), requires_grad=False)
    assert len(set(held)) == 1
