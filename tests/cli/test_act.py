"""``ostinato act``: observation files in every format, one answer, and errors of one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from typer.testing import CliRunner

import ostinato
from ostinato.cli import act_once as command
from ostinato.cli import main
from ostinato.cli.observation_file import read_observation
from ostinato.errors import ConfigError, InputError

TINY = "tiny-flux3-action"
NAMES = ("wrist", "left", "right")
FRAMES = {
    name: np.random.default_rng(i).integers(0, 256, (36, 64, 3), dtype=np.uint8)
    for i, name in enumerate(NAMES)
}
STATE = [0.1 * i for i in range(8)]


def written(folder: Path, suffix: str, **more: Any) -> Path:
    """The same observation in one of the formats."""
    path = folder / f"observation{suffix}"
    plain: dict[str, Any] = {"prompt": "open the drawer", "seed": 3} | more
    if suffix == ".json":
        for name, frame in FRAMES.items():
            Image.fromarray(frame).save(folder / f"{name}.png")
        images = {name: f"{name}.png" for name in NAMES}
        path.write_text(json.dumps({"images": images, "state": STATE} | plain))
        return path
    arrays = {f"images.{name}": frame for name, frame in FRAMES.items()}
    arrays["state"] = np.array(STATE, dtype=np.float32)
    if suffix == ".npz":
        np.savez(path, **arrays, **plain)
    else:
        save_file(arrays, str(path), {name: json.dumps(value) for name, value in plain.items()})
    return path


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_every_format_holds_the_same_observation(suffix: str, tmp_path: Path) -> None:
    found = read_observation(written(tmp_path, suffix, inference_delay=2))
    assert set(found) == {"images", "state", "prompt", "seed", "inference_delay"}
    assert found["prompt"] == "open the drawer" and found["seed"] == 3
    assert found["inference_delay"] == 2
    np.testing.assert_allclose(found["state"], STATE, rtol=1e-6)
    for name, frame in FRAMES.items():
        assert found["images"][name].dtype == np.uint8
        assert np.array_equal(found["images"][name], frame)


def test_images_may_be_lists_and_flat_names(tmp_path: Path) -> None:
    Image.fromarray(FRAMES["left"]).save(tmp_path / "left.png")
    path = tmp_path / "o.json"
    path.write_text(
        json.dumps({"images": {"wrist": [[[1, 2, 3]]]}, "observation.images.left": "left.png"})
    )
    found = read_observation(path)
    assert found["images"]["wrist"] == [[[1, 2, 3]]]
    assert np.array_equal(found["observation.images.left"], FRAMES["left"])


def test_the_answer_is_the_librarys_and_says_how_it_was_served(tmp_path: Path) -> None:
    path = written(tmp_path, ".json")
    result = CliRunner().invoke(
        main.app, ["act", "--model", TINY, "--device", "cpu", "--observation", str(path), "--json"]
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert set(answer["recording"].values()) == {"exact: recorded"}
    assert answer["verdict"] == "bit-exact" and answer["timings_ms"]["total"] > 0
    policy = ostinato.load_policy(TINY, device="cpu", enable_cuda_graph=False)
    expected = policy.infer({"images": FRAMES, "state": STATE, "prompt": "open the drawer"}, seed=3)
    assert np.array_equal(np.float32(answer["actions"]), expected["actions"])
    assert np.array_equal(np.float32(answer["model_actions"]), expected["model_actions"])


def test_switched_off_it_prints_a_table_and_has_nothing_to_compare(tmp_path: Path) -> None:
    arguments = ["act", "--model", TINY, "--device", "cpu", "--disable-cuda-graph"]
    path = written(tmp_path, ".npz")
    result = CliRunner().invoke(main.app, [*arguments, "--observation", str(path)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split(":")[0].strip() for line in lines[:8]] == [str(i) for i in range(8)]
    assert all(len(line.split()) == 9 for line in lines[:8])
    assert lines[8] == "observation: direct: off" and lines[-1].endswith("nothing is recorded")


def test_a_recorded_answer_that_differs_is_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = command.answer_to
    monkeypatch.setattr(
        command, "answer_to", lambda *a: honest(*a) | {"verdict": "differs by 1: served directly"}
    )
    path = written(tmp_path, ".npz")
    arguments = ["act", "--model", TINY, "--device", "cpu", "--observation", str(path)]
    result = CliRunner().invoke(main.app, arguments)
    assert result.exit_code == 1 and "differs by 1" in result.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("o.txt", "", "expected one of .json, .npz, .safetensors"),
        ("o.json", "{", "is no JSON"),
        ("o.json", "[]", "holds no object"),
        ("o.npz", "no archive", "is no .npz of arrays"),
        ("o.safetensors", "no tensors", "is no .safetensors"),
    ],
)
def test_files_that_are_none(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_observation(tmp_path / name)


def test_images_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text(json.dumps({"images": {"wrist": "missing.png"}}))
    with pytest.raises(InputError, match=r"image wrist: .*missing\.png cannot be read"):
        read_observation(tmp_path / "o.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "act wants one of --observation FILE and --replay DIR"),
        (["--observation", "/missing.npz"], "--observation '/missing.npz': No such file"),
    ],
)
def test_our_own_errors_are_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["ostinato", "act", "--model", TINY, *arguments])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ostinato: {message}")


def test_a_missing_camera_names_what_was_received(tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    path.write_text(json.dumps({"images": {}, "state": STATE}))
    policy = ostinato.load_policy(TINY, device="cpu", enable_cuda_graph=False)
    with pytest.raises(InputError, match=r"missing cameras \['wrist', 'left', 'right'\]"):
        command.answer_to(policy, read_observation(path))
