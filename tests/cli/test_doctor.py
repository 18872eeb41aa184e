"""The doctor's command: finding callables, passing inputs, printing reports."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from ostinato.cli import doctor as command
from ostinato.cli.nvidia import Gpu
from ostinato.errors import ConfigError
from tests.cli import examples

HERE = "tests.cli.examples"


@dataclass(frozen=True)
class FakeFinding:
    rule: str
    location: str
    fix: str


@dataclass(frozen=True)
class FakeReport:
    findings: list[FakeFinding] = field(default_factory=list)

    @property
    def recordable(self) -> bool:
        return not self.findings


def fake_doctor(fn: Any, *args: Any, **kwargs: Any) -> FakeReport:
    """Complains with the callable's own result, so that a test sees what was called."""
    return FakeReport([FakeFinding("L1", "a.py:3", f"result {fn(*args, **kwargs)}")])


@pytest.mark.parametrize(
    ("inputs", "result"), [("two_inputs", 5), ("named_inputs", 7), ("one_input", 7)]
)
def test_inputs_come_from_a_callable(inputs: str, result: int) -> None:
    text = command.examine(f"{HERE}:add", f"{HERE}:{inputs}", as_json=False, doctor=fake_doctor)
    assert text.splitlines() == [
        f"{HERE}:add cannot be recorded as it is",
        "  rule: L1",
        "  location: a.py:3",
        f"  fix: result {result}",
    ]


def test_json_carries_verdict_and_findings() -> None:
    text = command.examine(f"{HERE}:one_input", None, as_json=True, doctor=fake_doctor)
    assert json.loads(text) == {
        "recordable": False,
        "findings": [{"rule": "L1", "location": "a.py:3", "fix": "result 7"}],
    }


def test_a_recordable_callable_is_one_line() -> None:
    text = command.examine(
        f"{HERE}:one_input", None, as_json=False, doctor=lambda fn: FakeReport([])
    )
    assert text == f"{HERE}:one_input can be recorded"


def test_nested_names_are_found() -> None:
    assert command.find_object(f"{HERE}:Holder.nested") is examples.Holder.nested


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_colon", "expected package.module:callable"),
        ("nowhere.at_all:f", "No module named 'nowhere'"),
        (f"{HERE}:missing", "has no missing"),
    ],
)
def test_a_wrong_target_is_named(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command.find_object(target)


def test_machine_facts_name_card_and_driver() -> None:
    facts = command.machine_facts(Gpu("Card", "580.1"))
    assert (facts["gpu"], facts["driver"]) == ("Card", "580.1")
    assert "driver       580.1" in command.machine_text(facts)
    assert "gpu          none" in command.machine_text(command.machine_facts(None))
