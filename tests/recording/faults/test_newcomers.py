"""What a sceptical first user found: ladders whose example fills the rung, inputs in
outside memory.
"""

from __future__ import annotations

import enum

import pytest
import torch
from torch.autograd import forward_ad

import ostinato
from ostinato import GraphConfig
from ostinato.errors import RecordingRefused
from ostinato.recording.ladder import Axis

T = torch.Tensor
ROWS = Axis("rows", top=16, rungs=(16,))


class Flag(enum.IntFlag):
    A = 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: torch.softmax(a @ a.t(), -1) @ a,
        lambda a: a.mean(0),
        lambda a: a * a.shape[0],
        lambda a: a.flip(0),
        lambda a: a * 2 if a.shape[0] > 8 else a * 3,
        lambda a: torch.nn.functional.pad(a, (0, 0, 0, (-a.shape[0]) % 8)) * 2,
        lambda a: a.chunk(2)[0] * 2,
    ],
)
def test_a_rung_whose_example_fills_it_is_checked_on_smaller_calls(fn: object) -> None:
    graphed = ostinato.graph(
        fn, grows={"a": {0: ROWS}}, config=GraphConfig(mode="ladder", min_hits=1)
    )
    with torch.no_grad():
        with pytest.raises(RecordingRefused):
            graphed.record(torch.randn(16, 4))
        for n in (16, 12, 8, 5, 3, 1):
            a = torch.randn(n, 4)
            assert torch.equal(graphed(a), fn(a))  # type: ignore[operator]
    graphed.close()


def test_what_pads_well_is_still_served_by_its_rung() -> None:
    graphed = ostinato.graph(
        lambda a: a.softmax(1), grows={"a": {0: ROWS}}, config=GraphConfig(mode="ladder")
    )
    with torch.no_grad():
        graphed.record(torch.randn(16, 4))
        for n in (16, 12, 5, 1):
            a = torch.randn(n, 4)
            assert torch.equal(graphed(a), a.softmax(1))
            route = graphed.why()
            assert route is not None and route.route == "rung"
    graphed.close()


def test_an_input_in_memory_that_the_region_writes_is_served_directly() -> None:
    ours, theirs = torch.zeros(8, 4), torch.zeros(8, 4)

    def store_in(cache: T, row: T, a: T) -> T:
        cache[:4].copy_(a)
        return row + 1

    graphed = ostinato.graph(lambda row, a: store_in(ours, row, a))
    with torch.no_grad():
        for turn in range(6):
            a = torch.randn(4, 4)
            row = ours[0] if turn % 2 else torch.zeros(4)
            same = theirs[0] if turn % 2 else torch.zeros(4)
            assert torch.equal(graphed(row, a), store_in(theirs, same, a))
    graphed.close()


def test_unknown_flags_are_different_values() -> None:
    graphed = ostinato.graph(lambda a, k: a * int(k))
    a = torch.ones(3)
    for value in (8, 8, 8, 16, 16, 16, 1):
        assert torch.equal(graphed(a, Flag(value)), a * value)
    graphed.close()


def test_a_result_without_a_place_in_a_key_is_served_directly() -> None:
    graphed = ostinato.graph(lambda a: torch.max(a, 0))
    for _ in range(4):
        a = torch.randn(3, 2)
        got, want = graphed(a), torch.max(a, 0)
        assert torch.equal(got.values, want.values) and torch.equal(got.indices, want.indices)
    route = graphed.why()
    assert route is not None and "result-type" in route.reason
    graphed.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads rules
def test_tangents_of_forward_mode_are_kept() -> None:
    graphed = ostinato.graph(lambda a: a * 3)
    x, y = torch.randn(4), torch.randn(4)
    with torch.no_grad():
        for _ in range(3):
            graphed(x)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(graphed(forward_ad.make_dual(x, y))).tangent
        assert tangent is not None and torch.equal(tangent, y * 3)
    graphed.close()
