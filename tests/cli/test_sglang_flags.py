"""SGLang's flags: taken, without effect and said so, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ostinato.cli import main as command
from ostinato.cli import sglang_chat_flags, sglang_flags
from ostinato.cli.sglang_flags import check_unknown
from ostinato.errors import ConfigError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sglang_flags.md"


def test_flags_without_effect_are_one_line_each() -> None:
    lines: list[str] = []
    arguments = ["--tp-size", "1", "--attention-backend=fa3", "--trust-remote-code"]
    check_unknown([*arguments, "--cuda-graph-bs", "1", "2", "4"], lines.append)
    assert lines == [
        "--tp-size 1 has no effect: one process serves one device",
        "--attention-backend fa3 has no effect: attention is chosen by measured time",
        "--trust-remote-code has no effect: no code of a checkpoint is ever run",
        "--cuda-graph-bs 1 2 4 has no effect: an encoder has no decode",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "2"], "--tp 2: one process serves one device, so only 1 is accepted"),
        (["--dp-size=8"], "--dp-size 8: one process"),
        (["--torchao-config", "x"], "--torchao-config is refused: this build serves encoders"),
        (["--enable-lora"], "--enable-lora is refused: adapters"),
        (["--frobnicate", "3"], "--frobnicate is not known"),
        (["--attention-backend"], "--attention-backend needs a value"),
        (["--trust-remote-code", "file"], "serve has no argument 'file'"),
        (["file"], "serve has no argument 'file'"),
    ],
)
def test_others_are_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_unknown(arguments, lambda line: None)


def test_serve_has_every_flag_that_is_called_understood() -> None:
    help_text = CliRunner().invoke(command.app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for name in sglang_flags.UNDERSTOOD:
        assert name in help_text


def test_no_flag_stands_in_two_places() -> None:
    names = [row[0] for row in sglang_flags.table()]
    assert len(names) == len(set(names))


def rows_of(text: str) -> list[tuple[str, str, str]]:
    rows = re.findall(r"^\| `(--\S+)` \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    return [(name, fate.strip(), text.strip()) for name, fate, text in rows]


def test_the_document_is_the_table() -> None:
    encoder, _, chat = DOCUMENT.read_text().partition("\n## Chat\n")
    assert rows_of(encoder) == sglang_flags.table()
    assert rows_of(chat) == sglang_chat_flags.table()
