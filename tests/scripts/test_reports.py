"""The small reports: sizes and benchmark results."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scripts.test_setup_env import load

size = load("size")
benchmarks = load("benchmarks")


def test_size_counts_lines_per_folder(tmp_path: Path) -> None:
    package = tmp_path / "src" / "ostinato" / "serve" / "deep"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1\n2\n3\n")
    (tmp_path / "src" / "ostinato" / "b.py").write_text("1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "c.py").write_text("1\n2\n")
    rows = [row.split() for row in size.report(size.count_lines(tmp_path)).splitlines()]
    assert rows[:4] == [
        ["1", "src/ostinato"],
        ["3", "src/ostinato/serve"],
        ["2", "tests"],
        ["6", "total"],
    ]


def test_no_result_is_said_and_not_invented(tmp_path: Path) -> None:
    assert "holds no result yet" in benchmarks.report(tmp_path)


def test_results_are_listed_as_they_state_themselves(tmp_path: Path) -> None:
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    (results / "a.json").write_text(json.dumps({"gpu": "H200", "torch": "2.11.0"}))
    line = "bench/results/a.json: gpu H200, torch 2.11.0, commit not stated"
    assert benchmarks.report(tmp_path) == line


def test_each_benchmark_runs_and_failures_are_counted(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    main = 'if __name__ == "__main__":\n    '
    good = f"from bench.shared import NAME\n{main}open(NAME, 'w').close()"
    (tmp_path / "bench" / "good.py").write_text(good)
    (tmp_path / "bench" / "bad.py").write_text(f"{main}raise SystemExit(3)")
    (tmp_path / "bench" / "shared.py").write_text("NAME = 'made'")
    assert benchmarks.run_all(tmp_path) == 1
    assert [path.stem for path in benchmarks.find_benchmarks(tmp_path)] == ["bad", "good"]
    assert (tmp_path / "made").exists()
