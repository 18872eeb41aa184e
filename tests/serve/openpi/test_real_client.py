"""The published openpi-client, in an environment of its own, is the judge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato
from ostinato.cli.act_replay import replay
from ostinato.cli.policy_wiring import PolicyAdapter
from scripts.openpi_client_env import client_python
from tests.serve.openpi.observations import as_read, plain, server
from tests.serve.openpi.stub import HW, StubPolicy, actions_of

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("real_client_program.py")
MODEL = "tiny-flux3-action"
CAMERA_HW = (360, 640)


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return client_python()
    except RuntimeError as error:
        pytest.skip(f"openpi-client cannot be installed here: {error}")


def run(python: Path, port: int, hw: tuple[int, int]) -> dict[str, Any]:
    command = [str(python), str(PROGRAM), str(port), *map(str, hw)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def served(*flags: str) -> Iterator[int]:
    """``ostinato serve`` as a user types it, once its warm-up is over."""
    code = "from ostinato.cli.main import main; main()"
    command = [sys.executable, "-u", "-c", code, "serve", "--model", MODEL, "--device", "cpu"]
    path = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [*command, "--port", "0", *flags], stdout=subprocess.PIPE, text=True, env=path
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout)
        line = next(line for line in lines if line.startswith("serving "))
        yield int(line.rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def test_served_answers_equal_those_in_process_and_replay(python: Path, tmp_path: Path) -> None:
    with served("--record", str(tmp_path), "--skip-server-warmup") as port:
        found = run(python, port, CAMERA_HW)
    assert found["numpy"].startswith("1.")
    policy = ostinato.load_policy(MODEL, device="cpu")
    try:
        wanted = policy.infer(plain(CAMERA_HW))["actions"]
        for answer in found["answers"]:
            assert (answer["dtype"], answer["shape"]) == ("float32", list(wanted.shape))
            assert answer["actions"] == wanted.tobytes().hex()
        assert found["steps"] == [wanted[k].tobytes().hex() for k in (0, 1, 2, 0)]
        assert found["again"] == wanted.tobytes().hex()
        assert found["error"].startswith(
            "Error in inference server:\n[state-size] state 3: 3 numbers; expected 8 (error id "
        )
        assert found["after_error"] == "ConnectionClosedError"
        assert found["metadata"]["input"]["camera_hw"] == list(CAMERA_HW)
        assert len(found["metadata"]["checkpoint_sha256"]) == 64
        assert "prev_total_ms" not in found["answers"][0]["server_timing"]
        assert found["answers"][1]["server_timing"]["prev_total_ms"] > 0
        report = replay(tmp_path, PolicyAdapter(MODEL, policy))
        assert len(report.compared) == 5 and report.is_good
    finally:
        policy.close()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_first_call_of_a_minute_does_not_lose_the_client(python: Path) -> None:
    """With the pings of both ends as they are; a server that computes in its loop loses the
    client after 50 seconds.
    """
    service = StubPolicy()
    service.delays_s = [60.0, 0.0]
    with server(service) as port:
        found = run(python, port, HW)
    assert found["answers"][0]["seconds"] >= 60
    wanted = actions_of(as_read(), {})
    assert found["answers"][0]["actions"] == wanted.tobytes().hex()
    assert np.frombuffer(bytes.fromhex(found["again"]), np.float32).shape == (32,)
