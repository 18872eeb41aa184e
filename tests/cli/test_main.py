"""The command itself: version, errors in one line, flags that exclude each other."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from ostinato.cli import main as command
from ostinato.cli.sglang_chat_flags import UNDERSTOOD, UNDERSTOOD_SWITCHES

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(command.app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, f"ostinato {version('ostinato')}")


def test_the_help_of_serve_lists_what_a_chat_understands() -> None:
    result = runner.invoke(command.app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for name, text in UNDERSTOOD_SWITCHES.items():
        assert f"{name}: {text}." in result.output
    for name, reader in UNDERSTOOD.items():
        assert f"{name}: {reader.text}." in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["serve", "--model", "x", "--device", "cpu"],
            "x is no directory, no hub name (owner/name) and no shipped model "
            "(tiny-flux3-action, tiny-qwen2-vl, tiny-qwen2.5-vl, tiny-qwen3-vl)",
        ),
        (
            ["serve", "--model", "x", "--nonsense"],
            "--nonsense is not known; see ostinato serve --help",
        ),
        (["doctor"], "doctor wants one of package.module:callable, --model and --machine"),
        (
            ["doctor", "a:b", "--machine"],
            "doctor wants one of package.module:callable, --model and --machine",
        ),
        (
            ["ladder", "--sizes", "/missing"],
            "--sizes '/missing': [Errno 2] No such file or directory: '/missing'",
        ),
        (["verify", "--model", "x", "--images", "/missing"], "--images '/missing' is no directory"),
    ],
)
def test_our_own_errors_are_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["ostinato", *arguments])
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines() == [f"ostinato: {message}"]


def test_machine_as_json() -> None:
    result = runner.invoke(command.app, ["doctor", "--machine", "--json"])
    assert json.loads(result.output)["torch"].startswith("2.")


def test_every_command_is_there() -> None:
    names = {c.name or c.callback.__name__ for c in command.app.registered_commands if c.callback}
    assert names == {"serve", "act", "chat", "encode", "verify", "ladder", "doctor"}
    assert {group.typer_instance.info.name for group in command.app.registered_groups} == {"bench"}
