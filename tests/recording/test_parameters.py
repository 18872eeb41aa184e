"""Names become numbers call by call; settings that cannot be are told by name, value and
expectation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato
from ostinato import GraphConfig
from ostinato.errors import ConfigError
from ostinato.recording import tree
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.parameters import Parameters
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand

AXIS = Axis("n", top=8, rungs=(4, 8))
LADDER = GraphConfig(min_hits=1, mode="ladder")


BEFORE: list[Any] = [None, 3.0, [], [rand(0, 2)], [rand(1, 2), rand(2, 2)], rand(3, 2)]


def plain(before: Any, cache: T, *, scale: T | None = None) -> T:
    given_tensors: list[T] = []
    tree.flatten(before, given_tensors)
    cache.add_(1)
    return cache * (2 if scale is None else scale) + sum(t.sum() for t in given_tensors)


def check_written(order: list[int]) -> None:
    """``cache`` is written back whatever comes before it."""
    served = graphed(plain, writes=["cache"])
    for number in order + order + order:
        mine, theirs = torch.zeros(2), torch.zeros(2)
        got, want = served(BEFORE[number], mine), plain(BEFORE[number], theirs)
        assert content(got) == content(want) and content(mine) == content(theirs)
    assert served.stats().calls["exact"] == 3 * len(order)


@pytest.mark.parametrize("order", [[0, 5], [5, 0, 4], list(range(6))])
def test_what_stands_before_a_written_parameter(
    order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under("parameters.first_numbers_stay", lambda: check_written(order), monkeypatch)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_written_parameters_in_any_order(order: list[int]) -> None:
    check_written(order)


def scaled(mask: T | None, x: T, bias: T | None = None) -> T:
    y = x * 2 if mask is None else x * mask
    return y if bias is None else y + bias


def check_optional() -> None:
    mask, bias = rand(0, 3), rand(1, 3)
    served = graphed(scaled, LADDER, grows={"x": {0: AXIS}})
    for n in (3, 4, 5):
        x = rand(n, n, 3)
        for args in ((None, x), (mask, x), (None, x, bias), (mask, x, bias)):
            with ostinato.route("rung"):
                assert content(served(*args)) == content(scaled(*args))
    assert served.why().rung == (("n", 8),)


def test_optional_arguments_before_what_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("parameters.first_numbers_stay", check_optional, monkeypatch)


def test_a_named_parameter_that_is_left_out() -> None:
    """Nothing to write back, nothing that grows: served like any other call."""

    def fn(x: T, cache: T | None = None) -> T:
        if cache is not None:
            cache.add_(1)
        return x * 2

    served = graphed(fn, writes=["cache"])
    x, cache = rand(0, 3), torch.zeros(3)
    for _ in range(2):
        assert content(served(x)) == content(x * 2) == content(served(x, None))
        assert content(served(x, cache=cache)) == content(x * 2)
    assert cache.tolist() == [2.0] * 3 and served.stats().calls["direct"] == 0


def test_numbers() -> None:
    parameters = Parameters(plain, "plain", {}, ["cache"])
    cache, scale = torch.zeros(1), torch.zeros(1)
    assert parameters.bound((None, cache), {})[2] == (("cache", 0),)
    assert parameters.bound(([scale, scale],), {"cache": cache})[2] == (("cache", 2),)
    args, kwargs, _ = parameters.bound((), {"scale": scale, "cache": cache, "before": 1})
    assert args == (1, cache) and kwargs == {"scale": scale}
    with pytest.raises(ConfigError, match="'cache' is a list; expected a tensor or None"):
        parameters.bound((None, [cache]), {})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grows": {"x": AXIS}}, r"grows\['x'\] is Axis.*expected \{'parameter': \{dimension"),
        ({"grows": [("x", AXIS)]}, r"grows is \[\('x'.*expected \{'parameter'"),
        ({"grows": {"x": {}}}, r"grows\['x'\] is \{\}; expected"),
        ({"grows": {"x": {"0": AXIS}}}, r"has the dimension '0'; expected 0, 1, 2"),
        ({"grows": {"x": {-1: AXIS}}}, r"has the dimension -1; expected 0, 1, 2"),
        ({"grows": {"x": {0: 16}}}, r"grows\['x'\]\[0\] is 16; expected an Axis or a Grows"),
        ({"grows": {"y": {0: AXIS}}}, "no parameter 'y'; expected one of"),
        ({"writes": "mask"}, "writes is 'mask'; expected names in a list"),
        ({"state": [3]}, "state holds 3; expected tensors"),
        ({"config": {"mode": "off"}}, r"config is \{'mode': 'off'\}; expected a GraphConfig"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ostinato.graph(scaled, **options)


def test_a_dimension_that_is_not_there() -> None:
    served = graphed(scaled, grows={"x": {2: AXIS}})
    with pytest.raises(ConfigError, match=r"dimension 2 of parameter 'x' .* shape \(3, 3\)"):
        served(None, rand(0, 3, 3))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Axis("n", top="8"), "top is '8'; expected a whole number"),  # type: ignore[arg-type]
        (lambda: Axis("n", top=8.0), "top is 8.0"),  # type: ignore[arg-type]
        (lambda: Axis("n", top=8, bottom=0), "bottom is 0"),
        (lambda: Axis("n", top=8, bottom=9), "bottom is 9; expected at most its top, 8"),
        (lambda: Axis("n", top=8, multiple=True), "multiple is True"),
        (lambda: Grows("n"), "axis is 'n'; expected an Axis"),  # type: ignore[arg-type]
        (lambda: Grows(AXIS, times=0), "times is 0"),
        (lambda: Grows(AXIS, plus=0.5), "plus is 0.5"),  # type: ignore[arg-type]
        (lambda: Grows(AXIS, fill="0"), "fill is '0'"),  # type: ignore[arg-type]
    ],
)
def test_axes_that_cannot_be(make: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()
