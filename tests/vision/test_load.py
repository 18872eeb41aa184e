"""Loading towers from every source, and what is refused by name."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ostinato.errors import WeightsError
from ostinato.vision.layout import Layouts
from ostinato.vision.load import load_tower
from ostinato.weights.files import list_shipped
from tests.vision.references import (
    FAMILIES,
    MIXED_GRIDS,
    distance,
    make_model,
    make_patches,
    run,
    run_reference,
    tower_of,
)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return make_model("qwen3_vl")


@pytest.fixture(scope="module")
def saved(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    model.save_pretrained(directory)
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def edit(directory: Path, change: Any) -> None:
    """Apply ``change`` to the dictionary of tensors and save it again."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def rename(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in list(tensors):
        if name.startswith(old):
            tensors[new + name.removeprefix(old)] = tensors.pop(name)


def result(model: Any, source: Any) -> list[torch.Tensor]:
    tower = load_tower(source)
    layout = Layouts(tower.config).exact(MIXED_GRIDS)
    return run(tower, make_patches(layout.num_patches, tower.config.patch_width), layout)


def reference(model: nn.Module) -> list[torch.Tensor]:
    num_patches = sum(t * h * w for t, h, w in MIXED_GRIDS)
    return run_reference(model, make_patches(num_patches, 96), MIXED_GRIDS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("generation", ["visual.", "model.visual."])
def test_both_generations_of_names(family: str, generation: str, tmp_path: Path) -> None:
    model = make_model(family)
    model.save_pretrained(tmp_path)

    def to_generation(tensors: dict[str, torch.Tensor]) -> None:
        rename(tensors, "model.visual.", "visual.")
        if generation != "visual.":
            rename(tensors, "visual.", generation)

    edit(tmp_path, to_generation)
    for mine, theirs in zip(result(model, tmp_path), reference(model), strict=True):
        assert distance(mine, theirs) <= 1e-5


def test_shards_without_vision_tensors_are_not_opened(model: nn.Module, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    vision = {shard for name, shard in index.items() if "visual." in name}
    others = set(index.values()) - vision
    assert len(vision) > 1
    assert others
    for shard in others:
        (tmp_path / shard).unlink()
    for mine, theirs in zip(result(model, tmp_path), reference(model), strict=True):
        assert distance(mine, theirs) <= 1e-5


def test_only_vision_tensors_are_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, read = safetensors.safe_open, []

    class Spy:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._manager = real(*args, **kwargs)

        def __enter__(self) -> Spy:
            self._handle = self._manager.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._manager.__exit__(*error)

        def get_tensor(self, name: str) -> torch.Tensor:
            read.append(name)
            return self._handle.get_tensor(name)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._handle, name)

    monkeypatch.setattr(safetensors, "safe_open", Spy)
    tower = load_tower(saved)
    assert len(read) == len(set(read)) == len(list(tower.parameters()))
    assert all("visual." in name for name in read)


def test_a_tower_saved_alone(model: nn.Module, tmp_path: Path) -> None:
    tower_of(model).save_pretrained(tmp_path)
    for mine, theirs in zip(result(model, tmp_path), reference(model), strict=True):
        assert distance(mine, theirs) <= 1e-5


@pytest.mark.parametrize("attribute", ["model.visual", "model", ""])
def test_a_loaded_module_shares_its_parameters(model: nn.Module, attribute: str) -> None:
    source = model.get_submodule(attribute)
    tower = load_tower(source)
    theirs = {id(parameter) for parameter in tower_of(model).parameters()}
    assert {id(parameter) for parameter in tower.parameters()} == theirs
    for mine, expected in zip(result(model, source), reference(model), strict=True):
        assert distance(mine, expected) <= 1e-5


def test_in_place_updates_of_a_loaded_module_show(model: nn.Module) -> None:
    owner = make_model("qwen3_vl")
    tower = load_tower(owner)
    other = make_model("qwen3_vl", seed=5)
    owner.load_state_dict(other.state_dict())
    layout = Layouts(tower.config).exact(MIXED_GRIDS)
    mine = run(tower, make_patches(layout.num_patches, 96), layout)[0]
    assert distance(mine, reference(other)[0]) <= 1e-5


def test_another_dtype_is_a_copy(model: nn.Module, saved: Path) -> None:
    for source in (model, saved):
        tower = load_tower(source, dtype=torch.bfloat16)
        assert {p.dtype for p in tower.parameters()} == {torch.bfloat16}
        layout = Layouts(tower.config).exact(MIXED_GRIDS)
        rows = run(tower, make_patches(layout.num_patches, 96), layout)[0]
        assert rows.dtype == torch.bfloat16
        assert distance(rows.float(), reference(model)[0]) <= 0.05
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_weights_outlive_their_files(copy: Path, model: nn.Module) -> None:
    tower = load_tower(copy)
    path = copy / "model.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    layout = Layouts(tower.config).exact(MIXED_GRIDS)
    mine = run(tower, make_patches(layout.num_patches, 96), layout)[0]
    assert distance(mine, reference(model)[0]) <= 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.visual.blocks.1.attn.qkv.weight"),
            r"missing: model.visual.blocks.1.attn.qkv.weight$",
        ),
        (
            lambda t: t.update({"model.visual.blocks.9.norm1.weight": torch.ones(3)}),
            r"not expected: model.visual.blocks.9.norm1.weight$",
        ),
        (
            lambda t: t.update({"model.visual.merger.linear_fc1.bias": torch.ones(3)}),
            r"merger.linear_fc1.bias has shape \(3,\), expected \(256,\)",
        ),
        (
            lambda t: t.update({"visual.pos_embed.weight": torch.ones(3)}),
            "two generations of names",
        ),
        (lambda t: rename(t, "model.visual.", "vision."), "no tensor is named"),
        (
            lambda t: t.update(
                {"model.visual.pos_embed.weight": torch.ones(49, 64, dtype=torch.float16)}
            ),
            "pos_embed.weight is torch.float16, the others are torch.float32",
        ),
    ],
)
def test_what_does_not_fit_is_named(copy: Path, change: Any, message: str) -> None:
    edit(copy, change)
    with pytest.raises(WeightsError, match=message):
        load_tower(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llava"}, "model_type 'llava'; known are qwen2_5_vl, qwen2_vl, qwen3_vl"),
        ({"vision_config": None}, "no vision_config"),
        ({"depth": 0}, "depth must be a positive integer, got 0"),
        ({"hidden_act": "relu"}, "hidden_act must be one of .*, got 'relu'"),
        ({"num_position_embeddings": 50}, "num_position_embeddings must be a square number"),
        ({"deepstack_visual_indexes": [2, 0]}, "deepstack_visual_indexes must be ascending"),
        ({"deepstack_visual_indexes": [0, 9]}, "block 9 named, depth is 4"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be axial, got 'yarn'"),
        ({"num_heads": 3}, "width must be a multiple of 4"),
    ],
)
def test_what_the_configuration_cannot_say(copy: Path, change: Any, message: str) -> None:
    path = copy / "config.json"
    config = json.loads(path.read_text())
    target = config if set(change) & set(config) else config["vision_config"]
    target.update(change)
    path.write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=message):
        load_tower(copy)


def test_shipped_models_are_the_same_every_time() -> None:
    towers = ["tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3-vl"]
    assert list_shipped() == ["tiny-flux3-action", *towers]
    for name in towers:
        first, second = load_tower(name), load_tower(name)
        for mine, again in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(mine, again)
    weight = load_tower("tiny-qwen3-vl").patch_embed.proj.weight
    expected = torch.tensor([-0.0115077, -0.0171892, -0.0638317])
    torch.testing.assert_close(weight.flatten()[:3], expected, rtol=0, atol=1e-6)


def test_local_sources_make_no_connection(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"a connection was attempted: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    load_tower(saved)
    load_tower("tiny-qwen3-vl")
    for wrong in ("no-such-directory", "./a/b", "/no/such", "a/b/c"):
        with pytest.raises(WeightsError, match="no directory, no hub name"):
            load_tower(wrong)
