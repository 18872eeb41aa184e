"""Line 1, the key: what changes the recorded work never shares a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ostinato import state
from ostinato.errors import UnkeyableArgument
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
