"""The pictures show what the newest result file says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import plots, roofline
from ostinato.vision.load import load_tower

CASE = {
    "case": "224x224",
    "patches": 196,
    "ours_ms": 3.0,
    "direct_ms": 16.0,
    "transformers_sdpa_ms": 31.0,
    "transformers_flash_ms": 28.0,
    "kernels_ms": 2.8,
}
FUSED = {
    "patches": 196,
    "fast_ms": 1.4,
    "plain_ms": 1.5,
    "transformers_sdpa_ms": 17.0,
    "transformers_flash_ms": 15.0,
}
WAY = {
    "times_ms": [1.0, 2.0, 4.0],
    "total_s": 0.007,
    "P99_ms": 4.0,
    "MiB_device": 8.0,
    "warm_up_s": 1.5,
}


def write(folder: Path, date: str, question: str, rows: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"question": question, "date": date, "torch": "2.11.0", "rows": rows}
    (folder / f"{date}-gpu-{question}.json").write_text(json.dumps(content))


def test_pictures_are_drawn_from_the_newest_results(tmp_path: Path) -> None:
    results = tmp_path / "bench" / "results"
    encoder = {"depth": 27, "cases": [CASE], "sweep": [CASE | {"ratio": 0.2}]}
    stream = {"depth": 8, "requests": 3, "distinct_sizes": 2, "ours": WAY, "exact_only": WAY}
    write(results, "2026-11-28", "encoder-qwen3_vl", {"depth": 1})
    write(results, "2026-11-29", "encoder-qwen3_vl", encoder)
    write(results, "2026-11-29", "fused-qwen3_vl", {"depth": 27, "224x224": FUSED})
    write(results, "2026-11-29", "stream-depth-8", stream)
    write(results, "2026-11-30", "stream-depth-8-dry", {"depth": 2})
    newest = plots.newest(results, "encoder-qwen3_vl")
    assert newest is not None and newest["rows"]["depth"] == 27
    drawn = plots.draw_all(tmp_path)
    assert [path.name for path in drawn] == [
        "encoder-qwen3_vl.png",
        "roofline-qwen3_vl.png",
        "stream.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_without_results_nothing_is_drawn(tmp_path: Path) -> None:
    assert plots.draw_all(tmp_path) == []


def test_a_result_of_several_images_has_no_roofline(tmp_path: Path) -> None:
    results = tmp_path / "bench" / "results"
    write(results, "2026-11-29", "fused-qwen3_vl", {"depth": 27, "mixed": FUSED})
    assert plots.draw_roofline(results, tmp_path, "qwen3_vl") is None


def test_a_roofline_shows_what_was_measured_and_nothing_else() -> None:
    rows = {
        "224x224": FUSED,
        "448x448": FUSED | {"patches": 784, "fp8_ms": 2.0},
        "kernels": {"224x224": {"fast": {"kernels_ms": 1.3}}},
        "compiled": {"448x448": {"default": {"ms": 9.0}, "reduce-overhead": {"ms": 4.0}}},
    }
    cases = [(name, rows[name]) for name in ("224x224", "448x448")]
    series = {label: times for _, _, label, times in plots._roofline_series(rows, cases)}
    assert series == {
        "ours": [1.4, 1.4],
        "sum of its kernels' GPU time": [1.3, None],
        "ours without FA3 and cuDNN": [1.5, 1.5],
        "ours with FP8 weights": [None, 2.0],
        "transformers": [15.0, 15.0],
        "transformers, torch.compile": [None, 4.0],
    }


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-qwen2.5-vl"])
def test_the_floor_counts_every_matrix_that_a_call_reads(name: str) -> None:
    tower = load_tower(name)
    config = tower.config
    if config.mlp_width % 64:  # widened to a multiple of 48
        config = replace(config, mlp_width=-(-config.mlp_width // 48) * 48)
    matrices = [p for n, p in tower.named_parameters() if p.dim() > 1 and "pos_embed" not in n]
    assert roofline.num_weights(config) == sum(p.numel() for p in matrices)
    few, many = (roofline.floor_ms(config, n) for n in (16, 1 << 20))
    reading = 2 * roofline.num_weights(config) / roofline.BYTES_PER_S
    assert few == pytest.approx(1e3 * reading) and many > few


def test_published_sizes_are_those_of_the_measured_towers() -> None:
    sizes = {f: roofline.published_config(f) for f in ("qwen3_vl", "qwen2_5_vl")}
    assert [(c.width, c.depth, c.mlp_width) for c in sizes.values()] == [
        (1152, 27, 4304),
        (1280, 32, 3420),
    ]
