"""Inference mode, no_grad, autocast, training: any mix gives the direct call's bytes."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.mutations import assert_fails_under
from tests.recording.serving import content, graphed, rand

MODES: dict[str, Any] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
    "no_cast": lambda: torch.autocast("cpu", enabled=False),
}
CALLS = st.lists(
    st.tuples(st.lists(st.sampled_from(sorted(MODES)), max_size=3), st.booleans(), st.booleans()),
    min_size=2,
    max_size=6,
)


def check_mixes(calls: list[tuple[list[str], bool, bool]], *, grad: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Dropout(0.5))
    model.requires_grad_(grad)
    served = graphed(model)
    for _ in range(2):
        for number, (modes, training, of_inference) in enumerate(calls):
            model.train(training)
            with torch.inference_mode(of_inference and not grad):
                x = rand(number, 2, 4)
            answers = []
            for call in (served, model):
                with ExitStack() as stack:
                    for mode in modes:
                        stack.enter_context(MODES[mode]())
                    torch.manual_seed(number)
                    answers.append(call(x))
            got, want = answers
            assert content(got) == content(want)
            assert got.requires_grad == want.requires_grad
            assert got.is_inference() == want.is_inference()
            if got.requires_grad:
                got.sum().backward()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(CALLS, st.booleans())
def test_any_mix(calls: list[tuple[list[str], bool, bool]], grad: bool) -> None:
    check_mixes(calls, grad=grad)


@pytest.mark.parametrize(
    ("mutation", "grad"), [("key.no_modes", False), ("served.gradients_are_forgotten", True)]
)
def test_mixes_can_fail(mutation: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [([], False, False), (["bfloat16"], False, False), (["inference"], True, False)]
    assert_fails_under(mutation, lambda: check_mixes(calls, grad=grad), monkeypatch)


def test_autocast_and_default_dtype_of_the_recording_thread() -> None:
    """The lane's thread has modes of its own; a recording has its caller's."""
    served = graphed(lambda x: torch.ones(4) @ x)
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            x = torch.ones(4)
            assert served(x).dtype == dtype and served.why().route == "exact"
            with torch.autocast("cpu", torch.bfloat16):
                assert content(served(x)) == content(torch.ones(4) @ x)
        finally:
            torch.set_default_dtype(torch.float32)


def check_hidden_gradient(reach: Callable[[], Any]) -> None:
    """The first call is recorded nowhere and has its gradient; a trial call found the parameter."""
    served = graphed(lambda x: x * reach())
    for _ in range(3):
        assert served(torch.ones(3)).requires_grad
        assert "a gradient may be needed" in served.why().reason
    with torch.no_grad():
        assert [served(torch.ones(3)).requires_grad for _ in range(3)] == [False] * 3
        assert served.why().route == "exact"


def test_a_parameter_that_no_name_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = nn.Parameter(torch.ones(3))
    variable: ContextVar[Any] = ContextVar("a parameter")
    variable.set(parameter)
    module: Any = types.ModuleType("ostinato_test_hidden")
    module.parameter = parameter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for reach in (variable.get, lambda: sys.modules["ostinato_test_hidden"].parameter):
        assert_fails_under(
            "served.gradients_are_forgotten",
            lambda reach=reach: check_hidden_gradient(reach),  # type: ignore[misc]
            monkeypatch,
        )
