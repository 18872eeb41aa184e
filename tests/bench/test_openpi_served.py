"""The benchmark of a served policy on the CPU: its processes talk, and its figures are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import openpi_served as bench


def test_a_tiny_policy_is_served_as_it_answers_in_process(tmp_path: Path) -> None:
    out = tmp_path / "served.json"
    assert bench.main(["--dry", "--warm", "4", "--requests", "8", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert (rows["num_requests"], rows["num_equal_bytes"]) == (8, 8)
    assert rows["num_different_answers"] == 4
    assert rows["routes"] == {"observation: exact: recorded": 8, "denoise: exact: recorded": 8}
    assert 0 < rows["policy"]["p50_ms"] < rows["round_trip"]["p50_ms"]
    assert 0 < rows["overhead"]["p50_ms"] < rows["round_trip"]["max_ms"]
    assert len(rows["round_trips_ms"]) == 8


def rounds(*round_trips_ms: float) -> list[dict[str, Any]]:
    timing = {"infer_ms": 5.0, "prev_total_ms": 6.5, "decode_ms": 0.2, "prepare_ms": 0.1}
    return [
        {
            "ask": turn % 2,
            "round_trip_ms": round_trip_ms,
            "server_timing": timing | {"queue_ms": 0.1},
            "recording": {"denoise": "exact: recorded"},
            "sha256": "ab"[turn % 2],
        }
        for turn, round_trip_ms in enumerate(round_trips_ms)
    ]


def test_figures() -> None:
    found = bench.figures(rounds(*([10.0] * 297), 10.5, 11.5, 30.0), ["a", "x"])
    assert found["round_trip"] == {"p50_ms": 10, "p90_ms": 10, "p99_ms": 10, "max_ms": 30}
    assert found["overhead"]["p50_ms"] == 1.5
    assert (found["num_equal_bytes"], found["routes"]) == (150, {"denoise: exact: recorded": 300})
    assert [row["turn"] for row in found["slowest"][:2]] == [299, 298]


@pytest.mark.parametrize(("p99_ms", "is_steady"), [(11.0, True), (11.1, False)])
def test_steady_is_a_tenth_above_the_median(p99_ms: float, is_steady: bool) -> None:
    found = bench.figures(rounds(*([10.0] * 196), *([p99_ms] * 4)), ["a", "b"])
    assert found["is_steady"] is is_steady
