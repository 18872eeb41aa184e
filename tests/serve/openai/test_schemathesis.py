"""schemathesis, in an environment of its own, against a real server: it finds no 500."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.openai_client_env import schemathesis_python
from tests.serve.openai.chatting import server
from tests.serve.openai.stub import StubChat


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_schemathesis_finds_no_server_error(tmp_path: Path) -> None:
    try:
        python = schemathesis_python()
    except RuntimeError as error:
        pytest.skip(f"schemathesis cannot be installed here: {error}")
    with server(StubChat()) as (port, _):
        url = f"http://127.0.0.1:{port}/openapi.json"
        command = [str(python.with_name("schemathesis")), "run", url]
        command += ["--checks", "not_a_server_error", "--max-examples", "60", "--no-color"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "10 passed" in done.stdout
