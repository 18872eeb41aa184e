"""Runs the benchmarks of bench/ one after the other, or lists and draws the results that exist.

Each benchmark is one file and answers one question. Nothing is invented here: what was not
measured is not reported.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def find_benchmarks(root: Path) -> list[Path]:
    """The files directly in bench/ that can be run; the others are shared by them."""
    files = sorted((root / "bench").glob("*.py"))
    return [path for path in files if '__name__ == "__main__"' in path.read_text()]


def run_all(root: Path) -> int:
    """Run each benchmark in a process of its own; the number that failed."""
    benchmarks = find_benchmarks(root)
    if not benchmarks:
        print("bench/ holds no benchmark yet")
    failed = 0
    for path in benchmarks:
        print(f"== {path.relative_to(root)}", flush=True)
        command = [sys.executable, "-m", f"bench.{path.stem}"]
        failed += subprocess.run(command, cwd=root, check=False).returncode != 0
    return failed


def report(root: Path) -> str:
    """One line per result file with its machine, torch and commit as the file states them."""
    files = sorted((root / "bench" / "results").rglob("*.json"))
    if not files:
        return "bench/results/ holds no result yet: nothing was measured in this tree"
    lines = []
    for path in files:
        content = json.loads(path.read_text())
        stated = content if isinstance(content, dict) else {}
        facts = (f"{key} {stated.get(key, 'not stated')}" for key in ("machine", "torch", "commit"))
        lines.append(f"{path.relative_to(root)}: {', '.join(facts)}")
    return "\n".join(lines)


def draw(root: Path) -> str:
    """Draw the pictures in docs/ from the newest results; one line per picture."""
    sys.path.insert(0, str(root))
    try:
        paths = importlib.import_module("bench.plots").draw_all(root)
    except ModuleNotFoundError as missing:
        return f"no pictures drawn: {missing}"
    return "\n".join(f"drawn: {path.relative_to(root)}" for path in paths)


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        sys.exit(run_all(ROOT))
    elif sys.argv[1:] == ["report"]:
        print(report(ROOT))
        print(draw(ROOT))
    else:
        sys.exit("usage: benchmarks.py run|report")
