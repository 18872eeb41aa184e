"""The pictures show what the newest result file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import plots

CASE = {
    "case": "224x224",
    "patches": 196,
    "ours_ms": 3.0,
    "direct_ms": 16.0,
    "transformers_sdpa_ms": 31.0,
    "transformers_flash_ms": 28.0,
    "kernels_ms": 2.8,
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
    write(results, "2026-11-29", "stream-depth-8", stream)
    write(results, "2026-11-30", "stream-depth-8-dry", {"depth": 2})
    newest = plots.newest(results, "encoder-qwen3_vl")
    assert newest is not None and newest["rows"]["depth"] == 27
    drawn = plots.draw_all(tmp_path)
    assert [path.name for path in drawn] == ["encoder-qwen3_vl.png", "stream.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_without_results_nothing_is_drawn(tmp_path: Path) -> None:
    assert plots.draw_all(tmp_path) == []
