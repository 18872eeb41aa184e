"""The doctor names rule and line, finds everything of a run, and leaves everything as it was."""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ostinato
from ostinato.errors import ConfigError
from ostinato.recording.doctor import Report, doctor, examine
from ostinato.recording.doctor_segments import check_segments
from tests.mutations import assert_fails_under
from tests.recording import doctor_cases
from tests.recording.doctor_cases import INFORMED, RECORDABLE, REFUSED
from tests.recording.tape_checks import bytes_of

T = torch.Tensor


def example() -> T:
    return torch.linspace(-3, 5, 16).reshape(4, 4)


def marked_line(case: Callable[..., Any]) -> str | None:
    lines, first = inspect.getsourcelines(case)
    marked = [n for n, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return f"{inspect.getsourcefile(case)}:{first + marked[0]}" if marked else None


def check_named(rule: str, case: Callable[[T], Any], severity: str) -> None:
    with torch.no_grad():
        report = doctor(case, example())
    found = [f for f in report.findings if f.rule == rule]
    assert [f.location for f in found] == [marked_line(case)]
    assert found[0].severity == severity
    assert found[0].detail and found[0].on_gpu and found[0].fix
    assert report.recordable is not any(f.severity == "refused" for f in report.findings)


@pytest.mark.parametrize("name", RECORDABLE)
def test_recordable_callables_are_called_so(name: str) -> None:
    with torch.no_grad():
        report = doctor(RECORDABLE[name], example())
    assert report.findings == () or name == "select", report
    assert report.recordable and report.num_operations > 1


@pytest.mark.parametrize(("rule", "case"), REFUSED, ids=[case.__name__ for _, case in REFUSED])
def test_what_cannot_be_recorded_is_named_with_its_line(
    rule: str, case: Callable[[T], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(f"doctor.{rule}", lambda: check_named(rule, case, "refused"), monkeypatch)


@pytest.mark.parametrize(("rule", "case"), INFORMED, ids=[case.__name__ for _, case in INFORMED])
def test_what_is_good_to_know_refuses_nothing(
    rule: str, case: Callable[[T], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        check_named(rule, case, "info")
        with torch.no_grad():
            assert doctor(case, example()).recordable

    assert_fails_under(f"doctor.{rule}", check, monkeypatch)


def many_reasons(x: T) -> T:
    y = x * x.sum().item()
    z = y + torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.cuda.synchronize()
    return z[z > 0].cpu()


def test_all_findings_of_a_run_are_collected_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        report = doctor(many_reasons, example())
        rules = [(f.rule, f.number) for f in report.refusals]
        assert rules[:5] == [
            ("host-scalar", "L1"),
            ("baked-data", "L2"),
            ("device-wait", "L9"),
            ("boolean-read", "L1"),
            ("host-read", "L1"),
        ]
        assert len({(f.rule, f.location) for f in report.refusals}) == len(report.refusals)

    assert_fails_under("doctor.device-wait", check, monkeypatch)


class Stateful(nn.Module):
    """Changes everything that can be changed, each in its way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0
        self.seen: list[int] = []
        self.by_name: dict[str, Any] = {"a": 1}

    def forward(self, x: T) -> T:
        self.calls += 1
        self.seen.append(len(x))
        self.by_name["b"] = self.by_name.pop("a", 1)
        self.last = x
        x.add_(random.random() + float(np.random.rand()))
        return self.norm(self.linear(x)) + torch.randn(4, device=x.device)  # type: ignore[no-any-return]


def check_nothing_stays() -> None:
    module, x = Stateful(), example()
    tensors = [*module.parameters(), *module.buffers(), x]
    before = [bytes_of(t) for t in tensors]
    python = (random.getstate(), bytes(np.random.get_state()[1]), bytes_of(torch.get_rng_state()))  # type: ignore[index]
    with torch.no_grad():
        report = doctor(module, x)
    assert {"python-state", "input-write", "state-write", "host-random", "random", "training"} <= {
        f.rule for f in report.findings
    }
    assert [bytes_of(t) for t in tensors] == before
    assert (module.calls, module.seen, module.by_name) == (0, [], {"a": 1})
    assert not hasattr(module, "last")
    after = (random.getstate(), bytes(np.random.get_state()[1]), bytes_of(torch.get_rng_state()))  # type: ignore[index]
    assert after == python


@pytest.mark.parametrize("protection", ["doctor.python_is_put_back", "doctor.memory_is_put_back"])
def test_state_random_numbers_and_inputs_are_as_before(
    protection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(protection, check_nothing_stays, monkeypatch)


def test_state_is_put_back_when_the_callable_fails_or_stops() -> None:
    big, log = torch.zeros(20 << 20), [0]  # 80 MiB, more than is ever cloned

    def body(x: T) -> T:
        log[0] += 1
        x.add_(1)
        with contextlib.suppress(Exception):
            big.add_(1)
        raise LookupError

    x = example()
    before = bytes_of(x)
    report = doctor(body, x)
    assert [f.rule for f in report.refusals] == ["input-write", "large-state"]
    assert bytes_of(x) == before and log == [0] and not big.any()


def test_gradients_are_a_reason_for_direct_calls() -> None:
    layer = nn.Linear(4, 4)
    report = doctor(layer, example())
    assert [(f.rule, f.number, f.severity) for f in report.findings] == [("grad", "L12", "direct")]
    assert not report.recordable and not report.refusals and "directly" in report.verdict
    with torch.inference_mode():
        assert doctor(layer, example()).findings == ()


def test_modes_and_hooks_are_told() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False)
    layer[0].register_forward_hook(lambda *_: None)
    with torch.autocast("cpu", torch.bfloat16):
        report = doctor(layer, example())
    assert [f.rule for f in report.findings] == ["autocast", "training", "hooks", "random"]
    assert report.recordable


def test_arguments_without_a_place_in_a_key() -> None:
    report = doctor(lambda x, how: x + 1, example(), how=types.SimpleNamespace())
    assert [(f.rule, f.number) for f in report.findings] == [("unkeyable", "L11")]
    assert "how" in report.findings[0].detail and "SimpleNamespace" in report.findings[0].detail


def by_length(x: T) -> T:
    if x.shape[0] > 4:
        return x * 2
    return x + 1


def test_two_examples_show_a_branch_on_shapes() -> None:
    calls: list[Any] = [((example(),), {}), ((torch.ones(8, 4),), {})]
    report = examine(by_length, calls)
    (found,) = report.findings
    first = inspect.getsourcelines(by_length)[1]
    assert (found.rule, found.number) == ("shape-branch", "L16")
    assert found.location == f"{__file__}:{first + 2}" and report.recordable
    assert examine(by_length, [calls[0], calls[0]]).findings == ()


@torch.library.custom_op("ostinato_tests::plain", mutates_args=())
def plain(x: T) -> T:
    return x + 1


@torch.library.custom_op("ostinato_tests::with_fake", mutates_args=())
def with_fake(x: T) -> T:
    return x + 1


@with_fake.register_fake
def _(x: T) -> T:
    return torch.empty_like(x)


def test_custom_operators_without_a_fake_are_told() -> None:
    report = doctor(lambda x: with_fake(plain(x)), example())
    assert [(f.rule, f.detail) for f in report.findings] == [("no-fake", "ostinato_tests::plain")]


def test_a_report_survives_json() -> None:
    report = doctor(many_reasons, example())
    again = Report.from_json(report.to_json())
    assert again == report and str(again) == str(report) and again.recordable is False
    assert Report.from_json(doctor(doctor_cases.block, example()).to_json()) != report


def test_a_report_reads_well() -> None:
    from rich.console import Console

    report = doctor(doctor_cases.stop_early, example())
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(report)
    text = console.export_text()
    for part in (
        "cannot be recorded",
        "host-scalar (L1)",
        str(marked_line(doctor_cases.stop_early)),
    ):
        assert part in str(report) and part in text


def test_what_stands_around_a_lambda_is_not_its_source() -> None:
    stream = io.StringIO()
    print(doctor(lambda x: x * 2, example()), doctor(lambda x: x + 1, example()), file=stream)
    assert "print()" not in stream.getvalue()
    never, other = (lambda x: -x if len(x) < 99 else x.item()), (lambda x: x * 2)
    assert [f.detail for f in doctor(never, example()).findings] == ["item()"]
    assert not doctor(other, example()).findings


def decorate(fn: Any) -> Any:
    print("at definition", file=io.StringIO())
    return fn


@decorate(decorate(print) and (lambda fn: fn))
def decorated(x: T) -> T:
    return x * 2


def test_a_decorator_is_not_the_source_of_what_it_decorates() -> None:
    assert not doctor(decorated, example()).findings


def test_the_public_name_and_what_it_refuses() -> None:
    assert ostinato.doctor is doctor
    with pytest.raises(ConfigError, match="3"):
        doctor(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no calls"):
        examine(by_length, [])
    graphed = ostinato.graph(by_length)
    assert doctor(graphed, example()).target.endswith("by_length")


@pytest.mark.parametrize(
    ("offsets", "part"),
    [
        (torch.tensor([0, 8]), "int64"),
        (torch.tensor([[0, 8]], dtype=torch.int32), "2 dimensions"),
        ([1, 8], "expected at least"),
        ([0, 5, 3, 8], "goes back after segment 1"),
        ([0, 7], "last offset of 7 for 8 rows"),
        ([0, 7, 8], "7 rows above the bound 6"),
        ([0, 2, 4, 6, 8], "4 segments above the capacity 3"),
    ],
)
def test_segment_offsets_are_checked(offsets: Any, part: str) -> None:
    (found, *_) = check_segments(offsets, num_tokens=8, max_length=6, capacity=3)
    assert part in found.detail and (found.rule, found.number) == ("segments", "L15")
    fine = torch.tensor([0, 4, 8], dtype=torch.int32)
    assert check_segments(fine, num_tokens=8, max_length=4, capacity=2) == []


@pytest.mark.parametrize(
    "message",
    [
        "Tried to instantiate dummy base class Stream",
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "CUDA error: no CUDA-capable device is detected",
    ],
)
def test_a_stream_is_named_whatever_a_build_says_without_a_gpu(message: str) -> None:
    def asks(x: T) -> T:
        raise RuntimeError(message)

    assert [f.rule for f in doctor(asks, example()).findings] == ["stream"]
