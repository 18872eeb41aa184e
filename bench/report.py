"""Writes one benchmark's figures as JSON, with machine, versions and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def circumstances() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    commit = os.environ.get("BENCH_COMMIT") or (
        asked.stdout.strip() if not asked.returncode else None
    )
    facts: dict[str, Any] = {
        "date": date.today().isoformat(),
        "commit": commit,  # BENCH_COMMIT: for a copy of the tree without its history
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


def save(question: str, rows: Any, out: str | None = None) -> Path:
    """Write ``rows`` to ``out`` or to ``bench/results/<date>-<machine>-<question>.json``."""
    facts = circumstances()
    machine = facts.get("gpu", "cpu").replace("NVIDIA ", "").replace(" ", "-").lower()
    path = Path(out) if out else RESULTS / f"{facts['date']}-{machine}-{question}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"question": question, **facts, "rows": rows}, indent=1) + "\n")
    return path


def write(question: str, rows: Any, out: str | None = None) -> Path:
    """``save``, then print the file as one JSON line."""
    path = save(question, rows, out)
    print(json.dumps(json.loads(path.read_text())), flush=True)
    return path


class Report:
    """A benchmark in sections. A section that fails is an error in the result, not its end.

    The file is written after each section, so that a run that is cut short leaves what it has.
    """

    def __init__(self, question: str, out: str | None) -> None:
        self.rows: dict[str, Any] = {}
        self._question, self._out = question, out
        self._begin = time.perf_counter()

    def section(self, name: str, measure: Callable[[], Any], *, is_kept: bool = True) -> Any:
        """Run one section; its result (written where ``is_kept``), or ``None`` after an error."""
        begin = time.perf_counter()
        try:
            result = measure()
            if is_kept and result is not None:
                self.rows[name] = result
        except Exception as error:
            result = None
            trace = traceback.format_exc().splitlines()[-12:]
            self.rows.setdefault("errors", {})[name] = {"error": repr(error)[:500], "trace": trace}
            print(f"SECTION {name} FAILED: {error!r}", flush=True)
        seconds = self.rows.setdefault("section_seconds", {})
        seconds[name] = round(time.perf_counter() - begin, 2)
        self.rows["seconds"] = round(time.perf_counter() - self._begin, 2)
        save(self._question, self.rows, self._out)
        return result

    def finish(self) -> int:
        """Print the one JSON line; the process's exit code."""
        write(self._question, self.rows, self._out)
        return 1 if "errors" in self.rows else 0
