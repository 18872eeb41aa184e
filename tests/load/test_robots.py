"""Eight robots at 10 Hz: a stalling, a disconnecting and a raving one disturb nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = ":".join(str(ROOT / part) for part in ("src", "", "clients/openpi/src"))
ENVIRONMENT = {"PYTHONPATH": PATH, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "tests.load.robots"]


@pytest.mark.parametrize(
    ("seconds", "deadline_ms"),
    [
        pytest.param(2, 500, id="quick"),  # beside other tests: only a blocked loop is found
        pytest.param(60, 100, id="full", marks=pytest.mark.load),
    ],
)
def test_nobody_else_misses_a_deadline(seconds: int, deadline_ms: int) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
    )
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        done = subprocess.run(
            [*COMMAND, "drive", port, str(seconds), str(deadline_ms)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            cwd=ROOT,
            check=False,
        )
    finally:
        _, log = server.communicate("", timeout=30)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print({name: value for name, value in found.items() if name != "wrong"})
    assert found["wrong"] == []
    assert "Traceback" not in log, log
    assert found["num_answered"] > 5 * 10 * seconds * 0.8
    assert set(found["disturbances"]) == {"stalled", "disconnected", "garbage"}
    assert found["disturbances"]["garbage"] > 3 * seconds
