"""``ostinato verify``: recorded against direct, and a difference is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import ostinato
from ostinato.cli import main as command
from ostinato.cli.verify import Comparison, Verdict, find_files, smallest_cosine, verify
from ostinato.errors import ConfigError
from tests.cli.encoders import FLAGS, MODEL, picture

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.png").write_bytes(picture(1, 256, 256))
    (tmp_path / "b.png").write_bytes(b"broken")
    (tmp_path / ".hidden").write_bytes(b"")
    return tmp_path


def test_a_recorded_result_is_close_to_the_direct_one(
    folder: Path, recorded: ostinato.Encoder
) -> None:
    verdict = verify(recorded, find_files(folder))
    broken, compared = verdict.comparisons
    assert (broken.error or "").startswith("[not-an-image]")
    assert compared.route in ("exact", "rung")
    assert compared.cosine == pytest.approx(1, abs=1e-6)
    assert (compared.relative_difference or 0) < 1e-5
    assert verdict.is_good
    assert str(verdict).splitlines()[-1].startswith("good: 1 of 2 files compared (1 ")


def test_a_wrong_recording_is_not_good(
    folder: Path, recorded: ostinato.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ostinato.vision.encoder as module

    split = module._split

    def swapped(output, layout, route):  # type: ignore[no-untyped-def]
        results = split(output, layout, route)
        if route.route != "direct":
            for result in results:
                result.embeddings.copy_(result.embeddings.flip(0).clone())
        return results

    monkeypatch.setattr(module, "_split", swapped)
    verdict = verify(recorded, find_files(folder))
    assert not verdict.is_good
    assert "NOT GOOD: 1 of 2" in str(verdict)


def test_nothing_compared_is_not_good() -> None:
    assert not Verdict((Comparison("a", error="broken"),), 0.9).is_good


@pytest.mark.parametrize(
    ("ours", "theirs", "cosine"),
    [
        ([[1, 0], [1, 1]], [[1, 0], [1, 0]], 0.5**0.5),
        ([[0, 0]], [[0, 0]], 1.0),
        ([[0, 0]], [[1, 0]], 0.0),
        ([[1, 0]], [[-2, 0]], -1.0),
    ],
)
def test_the_smallest_cosine_of_the_rows(ours: list, theirs: list, cosine: float) -> None:
    assert smallest_cosine(np.float32(ours), np.float32(theirs)) == pytest.approx(cosine)


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no file"):
        find_files(tmp_path)
    with pytest.raises(ConfigError, match="is no directory"):
        find_files(tmp_path / "missing")


def test_the_command(folder: Path) -> None:
    arguments = ["verify", "--model", MODEL, "--images", str(folder), "--device", "cpu", "--json"]
    result = runner.invoke(command.app, [*arguments, *FLAGS])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["files"], answer["compared"], answer["is_good"]) == (2, 1, True)
    assert answer["cosine"] >= 0.999
