"""Checkpoint files are read as the published processors read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ostinato.vision.preprocess import Preprocessor, default_config, load_config

from .pictures import picture
from .samples import assert_equal_bytes


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_without_files_the_defaults_stand(tmp_path: Path, family: str) -> None:
    assert load_config(tmp_path, family) == default_config(family)


def test_the_defaults_are_the_published_ones() -> None:
    published = Qwen2VLImageProcessorPil()
    image = default_config("qwen2_vl").image
    assert published.patch_size == image.patch_size
    assert published.merge_size == image.merge_size
    assert published.temporal_patch_size == image.temporal_patch_size
    assert tuple(published.image_mean) == image.image_mean
    assert tuple(published.image_std) == image.image_std
    assert published.rescale_factor == image.rescale_factor
    size = dict(published.size)
    assert (size["shortest_edge"], size["longest_edge"]) == (image.min_pixels, image.max_pixels)


@pytest.mark.parametrize(
    "values",
    [
        {"min_pixels": 3_136, "max_pixels": 40_000},
        {"max_pixels": 40_000, "image_mean": [0.5, 0.4, 0.3]},
        {"size": {"shortest_edge": 9_000, "longest_edge": 20_000}, "patch_size": 16},
        {"do_normalize": False, "min_pixels": 90_000},
        {"do_rescale": False, "image_std": [2.0, 3.0, 4.0]},
        {"rescale_factor": 1 / 127.5, "merge_size": 1, "temporal_patch_size": 1},
    ],
)
def test_files_saved_by_the_published_processor(tmp_path: Path, values: dict[str, Any]) -> None:
    size = {"shortest_edge": 3_136, "longest_edge": 1_003_520}
    published = Qwen2VLImageProcessorPil(**{"size": size, **values})
    published.save_pretrained(tmp_path)
    assert (tmp_path / "preprocessor_config.json").is_file()
    image = picture(150, 210)
    with Preprocessor(load_config(tmp_path, "qwen2_vl")) as preprocessor:
        assert_equal_bytes(preprocessor.image(image), published, image)


def test_all_three_files(tmp_path: Path) -> None:
    default = default_config("qwen3_vl")
    both = {"image_processor": {"min_pixels": 1_000}, "video_processor": {"fps": 1.0}}
    write(tmp_path / "processor_config.json", both)
    changed = load_config(tmp_path, "qwen3_vl")
    assert changed.image == replace(default.image, min_pixels=1_000)
    assert changed.video == replace(default.video, fps=1.0)
    size = {"shortest_edge": 4_096, "longest_edge": 25_165_824}
    write(tmp_path / "video_preprocessor_config.json", {"size": size, "fps": None, "rule": "x"})
    write(tmp_path / "preprocessor_config.json", {"size": size, "min_pixels": 2_000, "unknown": 1})
    changed = load_config(tmp_path, "qwen3_vl")
    expected = replace(default.image, min_pixels=2_000, max_pixels=25_165_824)
    assert changed.image == expected  # the explicit bound wins over `size`, as published
    assert (changed.video.min_pixels, changed.video.max_pixels) == (4_096, 25_165_824)
    assert changed.video.rule == "qwen3"
