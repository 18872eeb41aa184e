"""The fuzzer, for a moment in the normal suite and for longer under ``load``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("seconds", "seed"), [(2, 1), pytest.param(60, 2, marks=pytest.mark.load)])
def test_damaged_messages_crash_nothing_and_take_no_memory(seconds: int, seed: int) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.serve.openpi.fuzz"]
    path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*command, str(seconds), str(seed)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    print(counts)
    # most damage is found, some is none: both ways were tried
    assert 0 < counts["observations"] < counts["messages"] * 2
    assert 0 < counts["values"] < counts["messages"]
    assert counts["messages"] > 100
    assert counts["grown_bytes"] < 100 * 2**20
