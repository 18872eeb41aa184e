"""Prints lines of Python per folder and the longest files, so that size is a number people see."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/ostinato", "tests", "bench", "scripts")


def count_lines(root: Path) -> dict[Path, int]:
    """Lines of every Python file below the counted folders, keyed by path relative to the root."""
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    return {path.relative_to(root): len(path.read_text().splitlines()) for path in files}


def folder_of(path: Path) -> str:
    """The package below src/ostinato or tests that a file belongs to."""
    depth = 3 if path.parts[0] == "src" else 2
    return "/".join(path.parent.parts[:depth])


def report(lines: dict[Path, int]) -> str:
    """One row per folder, a sum, and the ten longest files."""
    per_folder: Counter[str] = Counter()
    for path, count in lines.items():
        per_folder[folder_of(path)] += count
    rows = [f"{count:7,}  {folder}" for folder, count in sorted(per_folder.items())]
    longest = sorted(lines.items(), key=lambda item: -item[1])[:10]
    rows += [f"{sum(lines.values()):7,}  total", "", "longest files:"]
    rows += [f"{count:7,}  {path}" for path, count in longest]
    return "\n".join(rows)


if __name__ == "__main__":
    print(report(count_lines(ROOT)))
