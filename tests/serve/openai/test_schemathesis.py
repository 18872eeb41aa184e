"""schemathesis, in an environment of its own, against a real server: it finds no 500, with the
stub and with a tiny model.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import ostinato
from ostinato.cli.chat_wiring import ChatAdapter
from ostinato.serve.openai.contract import ChatService
from scripts.openai_client_env import schemathesis_python
from tests.serve.openai.chatting import server
from tests.serve.openai.stub import StubChat

Make = Callable[[], AbstractContextManager[ChatService]]


@contextmanager
def stub() -> Iterator[ChatService]:
    yield StubChat()


@contextmanager
def tiny() -> Iterator[ChatService]:
    off = ostinato.GraphConfig(mode="off")
    sizes: dict[str, Any] = {"max_length": 64, "max_batch": 2, "prefill_rungs": (64,)}
    with ostinato.load_chat("tiny-qwen3-vl", device="cpu", graph=off, **sizes) as chat:
        yield ChatAdapter("tiny-qwen3-vl", chat)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("make", "examples"), [(stub, 60), (tiny, 20)])
def test_schemathesis_finds_no_server_error(tmp_path: Path, make: Make, examples: int) -> None:
    try:
        python = schemathesis_python()
    except RuntimeError as error:
        pytest.skip(f"schemathesis cannot be installed here: {error}")
    with make() as service, server(service) as (port, _):
        url = f"http://127.0.0.1:{port}/openapi.json"
        command = [str(python.with_name("schemathesis")), "run", url]
        command += ["--checks", "not_a_server_error", "--max-examples", str(examples), "--no-color"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "10 passed" in done.stdout
