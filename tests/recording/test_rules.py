"""Every rule refuses its kind, with the line of the caller, and passes what looks like it."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
from typing import Any

import pytest
import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.probe import probe
from ostinato.recording.rules import RULES
from tests.mutations import assert_fails_under
from tests.recording.rule_cases import (
    ALLOWED,
    REFUSED,
    Case,
    collect,
    frombuffer,
    one_hot,
    saved,
    synchronize,
    to_dlpack,
)


def check_refused(rule: str, case: Case, *, inference: bool = False) -> None:
    with torch.inference_mode(inference):
        x = torch.arange(12.0).reshape(4, 3) - 4
        before = x.clone()
        with pytest.raises(RecordingRefused) as caught:
            probe(lambda: case(x), [x])
    lines, first = inspect.getsourcelines(case)
    body = next(n for n, line in enumerate(lines) if line.startswith("def ")) + 1
    assert caught.value.rule == rule
    assert caught.value.location == f"{inspect.getsourcefile(case)}:{first + body}"
    assert caught.value.fix == RULES[rule].fix
    assert RULES[rule].on_gpu in caught.value.reason
    assert torch.equal(x, before)


@pytest.mark.parametrize(("rule", "case"), REFUSED, ids=[case.__name__ for _, case in REFUSED])
def test_a_breach_is_refused_with_rule_line_and_fix(
    rule: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(f"rules.{rule}", lambda: check_refused(rule, case), monkeypatch)


@pytest.mark.parametrize(("rule", "case"), REFUSED, ids=[case.__name__ for _, case in REFUSED])
def test_a_breach_is_refused_in_inference_mode(rule: str, case: Case) -> None:
    check_refused(rule, case, inference=True)


def test_composites_are_looked_into_in_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        check_refused("host-scalar", one_hot, inference=True)

    assert_fails_under("calls.composites_stay_whole", check, monkeypatch)


@pytest.mark.parametrize("case", [synchronize, collect, saved, frombuffer, to_dlpack])
def test_functions_that_no_mode_sees_are_patched(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = next(rule for rule, known in REFUSED if known is case)
    assert_fails_under("patches.not_installed", lambda: check_refused(rule, case), monkeypatch)


def test_every_rule_of_the_table_is_tested() -> None:
    elsewhere = {"large-state", "triton-launch", "higher-order", "piece-result", "host-random"}
    assert {rule for rule, _ in REFUSED} | elsewhere == set(RULES)


def test_a_triton_launch_outside_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        with pytest.raises(RecordingRefused) as caught:
            probe(lambda: kernel.run(), [])
        assert caught.value.rule == "triton-launch"
        assert str(caught.value.location).startswith(__file__)

    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (), {"run": lambda self: None})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    kernel = jit.JITFunction()
    assert_fails_under("rules.triton-launch", check, monkeypatch)


def test_a_triton_launch_inside_an_operator_is_the_operators_business(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (), {"run": lambda self: None})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    kernel = jit.JITFunction()

    with torch.library._scoped_library("ostinato_test_rules", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")

        def double(x: torch.Tensor) -> torch.Tensor:
            kernel.run()
            return x * 2

        library.impl("double", double, "CPU")
        x = torch.ones(2)
        seen = probe(lambda: torch.ops.ostinato_test_rules.double(x), [x])
    assert torch.equal(seen.result, torch.full((2,), 2.0))


def test_a_higher_order_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._higher_order_ops.cond import cond_op

    x = torch.ones(2)

    def check() -> None:
        with pytest.raises(RecordingRefused) as caught:
            probe(lambda: cond_op(x.sum() > 0, torch.sin, torch.cos, (x,)), [x])
        assert caught.value.rule == "higher-order"

    assert_fails_under("rules.higher-order", check, monkeypatch)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", ALLOWED)
def test_what_only_looks_like_a_breach_passes(name: str, inference: bool) -> None:
    x = torch.arange(12.0).reshape(4, 3) - 4
    expected = ALLOWED[name](x)
    with torch.inference_mode(inference):
        result = probe(lambda: ALLOWED[name](x), [x]).result
    if isinstance(expected, torch.Tensor):
        assert torch.equal(result, expected)


def test_a_swallowed_refusal_is_raised_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)

    def body() -> Any:
        try:
            return x.sum().item()
        except RuntimeError:
            return x

    def check() -> None:
        with pytest.raises(RecordingRefused, match="host-scalar"):
            probe(body, [x])

    assert_fails_under("tape.swallowed_refusals_pass", check, monkeypatch)


def test_the_line_is_the_callers_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(
        "frames.innermost_of_all", lambda: check_refused("host-scalar", one_hot), monkeypatch
    )


def test_patches_act_only_while_a_probe_runs_and_only_on_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    originals = (torch.cuda.synchronize, gc.collect, threading.Thread.start)
    inside, done = threading.Event(), threading.Event()
    errors: list[RecordingRefused] = []

    def other() -> None:
        inside.wait(5)
        try:
            gc.collect()
        except RecordingRefused as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def body() -> None:
        inside.set()
        done.wait(5)

    probe(body, [])
    thread.join()
    assert not errors

    def check() -> None:
        probe(lambda: None, [])
        assert (torch.cuda.synchronize, gc.collect, threading.Thread.start) == originals

    assert_fails_under("patches.stay_installed", check, monkeypatch)
