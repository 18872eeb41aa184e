"""The doctor's command: what it examines, with which inputs, and that it reports."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from ostinato.cli import doctor
from ostinato.cli import main as command
from ostinato.errors import ConfigError
from ostinato.recording.doctor import MachineReport, Report

HERE = "tests.cli.examples"
runner = CliRunner()


@pytest.mark.parametrize("name", ["one_tensor", "two_inputs", "named_inputs", "whole_call"])
def test_inputs_come_from_a_callable(name: str) -> None:
    report = doctor.examine_callable(f"{HERE}:double", f"{HERE}:{name}")
    assert report.recordable and report.num_operations == 1


def test_a_callable_with_an_example_beside_it() -> None:
    report = doctor.examine_callable(f"{HERE}:double", None)
    assert (report.recordable, report.num_operations) == (True, 1)


def test_a_callable_that_reads_is_refused_with_rule_and_line() -> None:
    result = runner.invoke(
        command.app, ["doctor", f"{HERE}:reads", "--inputs", f"{HERE}:one_tensor"]
    )
    assert result.exit_code == 1
    assert "refused: host-scalar (L1)" in result.output
    assert "examples.py:" in result.output


def test_json_is_the_report() -> None:
    result = runner.invoke(command.app, ["doctor", f"{HERE}:double", "--json"])
    assert result.exit_code == 0
    assert Report.from_json(result.stdout) == doctor.examine_callable(f"{HERE}:double", None)


def test_a_callable_without_an_example_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"reads_example\(\) or example_inputs\(\)"):
        doctor.examine_callable(f"{HERE}:reads", None)


@pytest.mark.parametrize(
    ("model", "num_operations"),
    [("tiny-qwen2-vl", 47), ("tiny-qwen2.5-vl", 72), ("tiny-qwen3-vl", 87)],
)
def test_a_models_tower_can_be_recorded(model: str, num_operations: int) -> None:
    """Every operator is looked at: rotation and attention are one of each block's."""
    report = doctor.examine_model(model)
    assert report.recordable, str(report)
    assert report.num_operations == num_operations


def test_the_machine_and_a_card_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    result = runner.invoke(command.app, ["doctor", "--machine", "--json"])
    assert MachineReport.from_json(result.stdout).torch == torch.__version__
    facts = json.loads(result.stdout) | {"error": "driver 535.1, needed 580"}
    monkeypatch.setattr(doctor, "machine", lambda **_: MachineReport(**facts))
    result = runner.invoke(command.app, ["doctor", "--machine"])
    assert (result.exit_code, "needed 580" in result.stdout) == (1, True)
