"""Line 1, the key: what changes the recorded work never shares a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ostinato import state
from ostinato.errors import UnkeyableArgument
from ostinato.recording import key
from tests.mutations import assert_fails_under
from tests.recording.serving import T, check_calls, content, graphed, rand
from tests.recording.test_key import SWITCHES


def scaled(x: T, factor: Any = 1, *, mode: Any = None) -> tuple[T, str, str]:
    return x * factor + (0.5 if mode else 0.25), type(factor).__name__, repr(factor)


def check_values() -> None:
    x = rand(0, 3)
    calls = [(x, v) for v in (1, 1.0, True, 0.0, -0.0, complex(1), 2)] * 3
    served = check_calls(scaled, calls, recorded=0.9)
    assert len(served.recordings()) == 7


def check_layouts() -> None:
    base = rand(1, 6, 6)
    tensors = [
        base,
        base.t(),
        base[:, :3],
        base[::2],
        base.flatten()[1:31],
        base.flatten()[:30],
        base[0].expand(6, 6),
        base.double(),
        base[:0],
    ]

    def plain(x: T) -> tuple[T, tuple[int, ...]]:
        return x.flatten() * 2, x.stride()

    served = check_calls(plain, [(t,) for t in tensors] * 3, recorded=0.9)
    assert len(served.recordings()) == len(tensors)


def check_switches() -> None:
    weight = rand(2, 4, 4).requires_grad_(False)
    served = graphed(lambda x: torch.nn.functional.linear(x, weight) * torch.ones(4))
    x = rand(3, 2, 4)
    for _ in range(2):
        for name, switch in SWITCHES.items():
            with switch():
                got, want = served(x), torch.nn.functional.linear(x, weight) * torch.ones(4)
                assert served.why().route == "exact", name
            assert content(got) == content(want), name
            assert got.is_inference() == want.is_inference()
    assert len(served.recordings()) == len(SWITCHES)


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        ("key.values_without_type", check_values),
        ("key.no_strides", check_layouts),
        ("key.no_modes", check_switches),
    ],
)
def test_keys(mutation: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, check, monkeypatch)


def test_an_operators_verdict_makes_a_new_key() -> None:
    fast = [False]

    def choose(x: T) -> T:
        return x * (2 if fast[0] else 3)

    served = graphed(choose)
    served(rand(0, 2))
    state.verdicts.changed()
    served(rand(0, 2))
    assert len(served.recordings()) == 2


def test_grad_mode_with_anything_that_requires_grad_is_direct() -> None:
    def check() -> None:
        layer = nn.Linear(3, 3).requires_grad_(False)
        served = graphed(layer)
        x = rand(0, 2, 3)
        assert not served(x).requires_grad and served.why().route == "exact"
        layer.requires_grad_(True)
        y = served(x)
        assert y.requires_grad and served.why() == ("direct", "a gradient may be needed", ())
        y.sum().backward()
        assert layer.weight.grad is not None
        with torch.no_grad():
            served(x)
            assert served.why().route == "exact"
        layer.requires_grad_(False)
        assert served(x.clone().requires_grad_()).requires_grad

    check()


def test_grad_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(
        "served.gradients_are_forgotten",
        test_grad_mode_with_anything_that_requires_grad_is_direct,
        monkeypatch,
    )


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(UnkeyableArgument, match="object"):
        graphed(scaled)(rand(0, 2), object())
    with pytest.raises(UnkeyableArgument, match="sparse"):
        graphed(scaled)(torch.eye(2).to_sparse())


def test_the_autocast_cache_is_off_while_recording() -> None:
    """With the cache on, the cast weight would be the first call's for ever."""

    def check() -> None:
        layer = nn.Linear(4, 4).requires_grad_(False)
        served = graphed(lambda x: layer(x) + layer(x + 1))
        x = rand(0, 2, 4)
        with torch.autocast("cpu", torch.bfloat16):
            served(x)
            layer.weight.mul_(2)
            assert content(served(x)) == content(layer(x) + layer(x + 1))
            assert served.why().route == "exact"

    check()


def check_same_objects(orders: Sequence[Sequence[int]], *, named: bool = False) -> None:
    """``a is b`` is a branch like any other; equal memory alone is not."""

    def fn(a: T, b: T, c: T) -> T:
        return a + 2 * b + 4 * c + 8 * (a is b) + 16 * (b is c) + 32 * (a is c)

    tensors = [rand(i, 3) for i in range(3)]
    served = graphed(fn)
    for order in (*orders, *orders, *orders):
        args = [tensors[i] for i in order]
        if named:
            call: dict[str, T] = dict(zip("abc", args, strict=True))
            assert content(served(**call)) == content(fn(**call))
        else:
            assert content(served(*args)) == content(fn(*args))
        assert served.why().route == "exact"
    patterns = {key.repeats_of([tensors[i] for i in order]) for order in orders}
    assert len(served.recordings()) == len(patterns)


ORDERS = [(0, 1, 2), (0, 0, 1), (0, 0, 0), (2, 1, 2), (1, 2, 2), (1, 2, 0)]


@pytest.mark.parametrize("named", [False, True])
def test_the_same_object_given_twice(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        check_same_objects(ORDERS, named=named)

    assert_fails_under("key.equal_objects_are_two", check, monkeypatch)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=5))
def test_the_same_objects_in_any_order(orders: list[tuple[int, int, int]]) -> None:
    check_same_objects(orders)


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_repeats_are_equal_for_equal_patterns(one: list[int], other: list[int]) -> None:
    pool = [torch.zeros(1) for _ in range(4)]

    def pattern(numbers: list[int]) -> list[bool]:
        return [a == b for a in numbers for b in numbers]

    a, b = ([pool[i] for i in numbers] for numbers in (one, other))
    is_alike = len(one) == len(other) and pattern(one) == pattern(other)
    if len(one) == len(other):
        assert (key.repeats_of(a) == key.repeats_of(b)) == is_alike
    assert (key.repeats_of(a) == ()) == (len(set(one)) == len(one))


def check_parameters() -> None:
    def fn(x: T) -> tuple[T, bool]:
        return x * 2, isinstance(x, nn.Parameter)

    plain, parameter = rand(0, 3), nn.Parameter(rand(0, 3), requires_grad=False)
    served = check_calls(fn, [(plain,), (parameter,), (plain,)] * 4, recorded=0.9)
    assert len(served.recordings()) == 2


def test_parameters_are_not_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("key.parameters_are_tensors", check_parameters, monkeypatch)


def test_bits_that_no_key_holds_change_no_value() -> None:
    x = torch.full((4,), 1 + 2j)
    plain, negated = rand(0, 4), torch._neg_view(rand(0, 4))
    with torch.inference_mode():
        inferred = rand(0, 4)
    served = graphed(lambda x: x * 2 + 1)
    for given_x in (x, x.conj(), x.conj()[::2], plain, negated, inferred, plain):
        for _ in range(3):
            assert torch.equal(served(given_x), given_x * 2 + 1)
