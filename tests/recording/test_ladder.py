"""Ladders without holes, whose top is always reached."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError
from ostinato.recording.ladder import Axis, Grows, Ladder


def check_ladder(bottom: int, top: int, ratio: float, multiple: int) -> None:
    ladder = Ladder.geometric(bottom=bottom, top=top, ratio=ratio, multiple=multiple)
    rungs = ladder.rungs
    assert rungs[-1] == ladder.top == top
    assert all(r % multiple == 0 for r in rungs[:-1])
    for a, b in pairwise(rungs):
        assert a < b <= max(a * ratio, a + multiple)
    for size in {*range(1, min(top, 70) + 1), top - 1, top} - {0}:
        fitting = [r for r in rungs if r >= size]
        assert ladder.fit(size) == min(fitting)
        assert ladder.below(min(fitting)) < size
    assert ladder.fit(top + 1) is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_ladder(data: st.DataObject) -> None:
    top = data.draw(st.integers(1, 40_000))
    bottom = data.draw(st.integers(1, top))
    ratio = data.draw(st.floats(1.0001, 4.0))
    check_ladder(bottom, top, ratio, data.draw(st.integers(1, 300)))


def test_every_maximum_has_a_rung_for_every_size() -> None:
    for top in range(1, 520):
        check_ladder(1, top, 1.25, 1)
        check_ladder(1, top, 1.25, 16)


@pytest.mark.parametrize(
    "options",
    [{"top": 0}, {"top": 4, "bottom": 5}, {"top": 4, "ratio": 1.0}, {"top": 4, "multiple": 0}],
)
def test_impossible_ladders(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=str([*options.values()][-1])):
        Ladder.geometric(**options)


@pytest.mark.parametrize("rungs", [(), (0, 1), (2, 2), (3, 1)])
def test_impossible_rungs(rungs: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        Ladder(rungs)


@given(st.integers(1, 50), st.integers(1, 7), st.integers(0, 5))
def test_grows_is_its_own_inverse(size: int, times: int, plus: int) -> None:
    grows = Grows(Axis("tokens", top=64), times=times, plus=plus)
    assert grows.axis_size(grows.length(size)) == size


def test_a_length_that_does_not_follow_its_axis() -> None:
    grows = Grows(Axis("tokens", top=64), times=4, plus=1)
    for length in (0, 2, 8):
        with pytest.raises(ConfigError, match="tokens"):
            grows.axis_size(length)


def test_own_rungs() -> None:
    assert Axis("n", top=9, rungs=(3, 9)).ladder(1.25).rungs == (3, 9)
