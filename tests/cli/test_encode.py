"""``ostinato encode``: files to embeddings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import ostinato
from ostinato.assets.photograph import clip_bytes, photograph_bytes
from ostinato.cli import main as command
from ostinato.cli.encode import encode_files, kind_of, write_file
from ostinato.errors import ConfigError
from tests.cli.encoders import FLAGS, MODEL, SMALL, picture

runner = CliRunner()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    contents = {"a.png": picture(1), "b.png": b"broken", "c.mp4": clip_bytes()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return [str(tmp_path / name) for name in contents]


def test_files_are_served_and_the_broken_one_is_named(
    files: list[str], recorded: ostinato.Encoder
) -> None:
    results, arrays = encode_files(recorded, files, SMALL)
    image, broken, video = results
    assert (image.kind, image.grid_thw, image.tokens, image.width) == ("image", (1, 6, 6), 9, 64)
    assert (image.route, image.deepstack_levels) == ("rung", 3)
    assert (broken.error or "").startswith("[not-an-image] ")
    assert str(broken) == f"{files[1]}: {broken.error}"
    assert video.kind == "video"
    assert "item.1.embeddings" not in arrays
    assert arrays["item.2.embeddings"].shape == (video.tokens, 64)


def test_the_file_holds_what_the_library_gives(
    files: list[str], recorded: ostinato.Encoder, tmp_path: Path
) -> None:
    results, arrays = encode_files(recorded, files, {})
    out = tmp_path / "out.safetensors"
    write_file(out, results, arrays)
    read = load_file(out)
    image = recorded.encode([files[0]])[0]
    video = recorded.encode(videos=[files[2]])[0]
    for place, want in ((0, image), (2, video)):
        assert np.array_equal(read[f"item.{place}.embeddings"], want.embeddings)
        for k, level in enumerate(want.deepstack):
            assert np.array_equal(read[f"item.{place}.deepstack.{k}"], level)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out .* No such file or directory"):
        write_file(tmp_path / "missing" / "out", [], {})


def test_kinds_go_by_the_name() -> None:
    names = ["a.jpg", "a.gif", "a", "a.mp4", "a.MOV", "a.mkv", "a.webm"]
    kinds = ["image", "image", "image", "video", "video", "video", "video"]
    assert [kind_of(name) for name in names] == kinds


def test_the_command_prints_json_and_fails_for_a_broken_file(files: list[str]) -> None:
    arguments = ["encode", "--model", MODEL, "--device", "cpu", "--disable-cuda-graph", "--json"]
    result = runner.invoke(command.app, [*arguments, *files])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert [item["file"] for item in answer] == files
    assert [item["route"] for item in answer] == ["direct", None, "direct"]
    assert answer[1]["error"].startswith("[not-an-image]")


def test_the_command_prints_how_each_was_served(tmp_path: Path) -> None:
    photograph = tmp_path / "photograph.jpg"
    photograph.write_bytes(photograph_bytes())
    arguments = ["encode", "--model", MODEL, "--device", "cpu", *FLAGS, "--max-pixels", "65536"]
    result = runner.invoke(command.app, [*arguments, str(photograph)])
    assert result.exit_code == 0, result.output
    assert "1 x 16 x 14 patches -> 56 x 64  rung" in result.stdout


def test_fp8_is_a_flag_and_refuses_what_it_cannot_round(files: list[str]) -> None:
    arguments = ["encode", *files[:1], "--model", MODEL, *FLAGS, "--quantization", "fp8", "--json"]
    result = runner.invoke(command.app, [*arguments, "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    refused = runner.invoke(command.app, [*arguments, "--dtype", "float32"])
    assert isinstance(refused.exception, ConfigError) or refused.exit_code == 2
    assert "works on bfloat16" in f"{refused.exception} {refused.output}"
