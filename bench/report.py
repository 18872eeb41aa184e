"""Writes one benchmark's figures as JSON, with machine, versions and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
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


def write(question: str, rows: Any, out: str | None = None) -> Path:
    """Write ``rows`` to ``out`` or to ``bench/results/<date>-<machine>-<question>.json``."""
    facts = circumstances()
    machine = facts.get("gpu", "cpu").replace("NVIDIA ", "").replace(" ", "-").lower()
    path = Path(out) if out else RESULTS / f"{facts['date']}-{machine}-{question}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"question": question, **facts, "rows": rows}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content))
    return path
