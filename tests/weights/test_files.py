"""The hub: what is fetched, from where, and what happens offline. No test connects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import save_file

from ostinato.errors import WeightsError
from ostinato.weights.config import read_config
from ostinato.weights.files import HubFiles, LocalFiles, open_files
from ostinato.weights.shards import StoredTensors

CPU = torch.device("cpu")


def write_sharded(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": "x"}')
    save_file({"visual.a": torch.arange(4.0)}, directory / "one.safetensors")
    save_file({"model.b": torch.ones(2), "visual.c": torch.ones(3)}, directory / "two.safetensors")
    save_file({"model.d": torch.ones(2)}, directory / "three.safetensors")
    shards = {"visual.a": "one", "model.b": "two", "visual.c": "two", "model.d": "three"}
    weight_map = {name: f"{shard}.safetensors" for name, shard in shards.items()}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str | None]]:
    """A hub with one repository; the list fills with what is asked of it."""
    write_sharded(tmp_path)
    asked: list[tuple[str, str, str | None]] = []

    def download(repository: str, name: str, *, revision: str | None = None) -> str:
        asked.append((repository, name, revision))
        if not (tmp_path / name).exists():
            raise EntryNotFoundError(name)
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def is_vision(name: str) -> bool:
    return name.startswith("visual.")


def test_only_configuration_index_and_needed_shards_are_fetched(hub: list[Any]) -> None:
    files = open_files("owner/name", revision="v2")
    assert read_config(files) == {"model_type": "x"}
    stored = StoredTensors(files, is_vision)
    assert dict(stored) == {"visual.a": (4,), "visual.c": (3,)}
    tensors = dict(stored.read(stored, device=CPU, dtype=torch.float16))
    assert torch.equal(tensors["visual.a"], torch.arange(4, dtype=torch.float16))
    assert torch.equal(tensors["visual.c"], torch.ones(3, dtype=torch.float16))
    names = ["config.json", "model.safetensors.index.json", "one.safetensors", "two.safetensors"]
    assert hub == [("owner/name", name, "v2") for name in names]


def test_without_an_index_the_single_file_is_fetched(hub: list[Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").unlink()
    save_file({"visual.a": torch.ones(2), "z": torch.ones(1)}, tmp_path / "model.safetensors")
    stored = StoredTensors(HubFiles("owner/name"), is_vision)
    assert dict(stored) == {"visual.a": (2,)}
    assert [name for _, name, _ in hub] == ["model.safetensors.index.json", "model.safetensors"]


def test_offline_and_not_cached_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(WeightsError, match=r"owner/name: no config.json"):
        read_config(open_files("owner/name"))
    with pytest.raises(WeightsError, match=r"owner/name: model.safetensors is missing"):
        StoredTensors(open_files("owner/name"), is_vision)


def test_a_directory_wins_over_a_hub_name(
    hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_files("owner/name"), LocalFiles)
    assert hub == []


@pytest.mark.parametrize("shard", ["../one.safetensors", "/etc/passwd", 3])
def test_an_index_cannot_point_elsewhere(tmp_path: Path, shard: object) -> None:
    write_sharded(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"visual.a": shard}}))
    with pytest.raises(WeightsError, match="names a file elsewhere"):
        StoredTensors(LocalFiles(tmp_path), is_vision)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("two.safetensors", None, "two.safetensors is missing"),
        ("two.safetensors", b"\xff" * 64, "two.safetensors cannot be read"),
        ("one.safetensors", b"", "one.safetensors cannot be read"),
        ("model.safetensors.index.json", b"[]", "index.json holds list, not an object"),
        ("model.safetensors.index.json", b"{", "index.json cannot be read"),
        ("model.safetensors.index.json", b"{}", "index.json has no weight_map"),
    ],
)
def test_broken_files_are_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    write_sharded(tmp_path)
    path = tmp_path / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        StoredTensors(LocalFiles(tmp_path), is_vision)


def test_an_index_that_lies_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    save_file({"visual.x": torch.ones(1)}, tmp_path / "one.safetensors")
    with pytest.raises(WeightsError, match=r"one.safetensors does not hold visual.a"):
        StoredTensors(LocalFiles(tmp_path), is_vision)


def test_a_truncated_tensor_is_an_error_before_it_is_used(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    path = tmp_path / "one.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(WeightsError, match=r"one.safetensors cannot be read"):
        StoredTensors(LocalFiles(tmp_path), is_vision)


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(WeightsError, match="is a file"):
        open_files(path)
