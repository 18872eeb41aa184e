"""The command itself: version, errors in one line, flags that exclude each other."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from ostinato.cli import main as command

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(command.app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, f"ostinato {version('ostinato')}")


def test_our_own_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ostinato", "serve", "--model", "x", "--device", "cpu"])
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 2
    expected = "ostinato: model 'x' is not known; this build serves: tiny-photograph"
    assert capsys.readouterr().err.splitlines() == [expected]


def test_machine_as_json() -> None:
    result = runner.invoke(command.app, ["doctor", "--machine", "--json"])
    assert json.loads(result.output)["torch"].startswith("2.")


@pytest.mark.parametrize("arguments", [[], ["a:b", "--machine"]])
def test_doctor_wants_exactly_one_subject(arguments: list[str]) -> None:
    result = runner.invoke(command.app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert "either" in result.output
