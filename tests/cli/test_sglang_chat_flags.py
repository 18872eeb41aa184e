"""SGLang's flags of a chat model: read, without effect and said so, or refused by name."""

from __future__ import annotations

import re

import pytest

from ostinato.cli import sglang_chat_flags, sglang_flags
from ostinato.cli.sglang_chat_flags import ChatFlags, read_chat_flags
from ostinato.errors import ConfigError

COMMAND = (
    "--cuda-graph-backend-prefill tc_piecewise --cuda-graph-max-bs-prefill 4096 "
    "--cuda-graph-tc-compiler eager"
)


def silent(line: str) -> None:
    raise AssertionError(line)


def test_the_command_of_the_readme_is_understood() -> None:
    wanted = ChatFlags(prefill_backend="tc_piecewise", max_prefill_tokens=4096, compiler="eager")
    assert read_chat_flags(COMMAND.split(), silent) == wanted
    assert read_chat_flags([], silent) == ChatFlags()
    asked = read_chat_flags(["--cuda-graph-tc-compiler", "inductor"], silent)
    assert asked == ChatFlags(prefill_backend="tc_piecewise", compiler="inductor")


def test_every_flag_lands_in_its_field() -> None:
    arguments = (
        "--cuda-graph-bs-prefill 512 128 512 --cuda-graph-bs-decode 1 2 4 "
        "--cuda-graph-max-bs-decode=32 --mem-fraction-static 0.8 --chunked-prefill-size 2048 "
        "--context-length 9000 --max-running-requests 16 --disable-radix-cache"
    )
    assert read_chat_flags(arguments.split(), silent) == ChatFlags(
        prefill_rungs=(128, 512),
        decode_rungs=(1, 2, 4),
        max_decode=32,
        memory_fraction=0.8,
        chunk_tokens=2048,
        context_tokens=9000,
        max_running=16,
        is_prefix_cache_on=False,
    )
    whole = read_chat_flags(["--chunked-prefill-size", "-1", "--context-length", "300"], silent)
    assert whole == ChatFlags(chunk_tokens=-1, context_tokens=300)
    old = read_chat_flags(["--cuda-graph-bs", "1", "2", "--cuda-graph-max-bs", "8"], silent)
    assert old == ChatFlags(decode_rungs=(1, 2), max_decode=8)


def test_flags_without_effect_are_one_line_each() -> None:
    lines: list[str] = []
    arguments = "--tp 1 --attention-backend fa3 --trust-remote-code --enable-multimodal"
    read_chat_flags(arguments.split(), lines.append)
    assert lines == [
        "--tp 1 has no effect: one process serves one device",
        "--attention-backend fa3 has no effect: attention is chosen by measured time",
        "--trust-remote-code has no effect: no code of a checkpoint is ever run",
        "--enable-multimodal has no effect: images are the normal case",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--cuda-graph-backend-prefill x", "x: expected one of full, tc_piecewise, breakable"),
        ("--cuda-graph-tc-compiler x", "x: expected one of eager, inductor"),
        ("--cuda-graph-max-bs-prefill 0", "0: expected 1 to 2147483647"),
        ("--cuda-graph-bs-decode 1 x", "--cuda-graph-bs-decode x: expected a whole number"),
        ("--cuda-graph-bs-prefill", "--cuda-graph-bs-prefill needs a value"),
        ("--chunked-prefill-size -1", "-1: expected with --context-length, tokens of the longest"),
        ("--chunked-prefill-size -2", "-2: expected 1 to 2147483647"),
        ("--mem-fraction-static 1.5", "1.5: expected a number between 0 and 1"),
        ("--mem-fraction-static nan", "nan: expected a number between 0 and 1"),
        ("--cuda-graph-bs 1 --cuda-graph-bs-decode 2", "said before with another value"),
        (
            "--cuda-graph-backend-prefill full --cuda-graph-tc-compiler eager",
            "--cuda-graph-tc-compiler eager: expected with --cuda-graph-backend-prefill "
            "tc_piecewise, not full",
        ),
        ("--chat-template x", "--chat-template is refused: the checkpoint's template is used"),
        ("--quantization fp8", "--quantization is refused"),
        ("--frobnicate", "--frobnicate is not known"),
        ("--tp 2", "only 1 is accepted"),
    ],
)
def test_others_are_refused_by_name(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_chat_flags(arguments.split(), silent)


def test_a_flag_has_one_fate_and_is_known_to_the_shared_table() -> None:
    names = [row[0] for row in sglang_chat_flags.table()]
    assert len(names) == len(set(names))
    assert set(names) <= {row[0] for row in sglang_flags.table()}


def test_no_encoder_speaks_to_a_chat_model() -> None:
    fates = sglang_chat_flags.fates()
    for texts in (fates.accepted, fates.accepted_switches, fates.refused):
        assert [name for name, text in texts.items() if "encoder" in text] == []
