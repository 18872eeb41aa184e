"""The published openai client, in an environment of its own, is the judge."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ostinato.assets.photograph import photograph_bytes
from scripts.openai_client_env import client_python
from tests.serve.openai.chatting import server
from tests.serve.openai.stub import StubChat
from tests.serve.openai.test_fields import OPENAI_CHAT, OPENAI_COMPLETION

PROGRAM = Path(__file__).with_name("real_client_program.py")


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return client_python()
    except RuntimeError as error:
        pytest.skip(f"the openai client cannot be installed here: {error}")


def test_the_published_client_chats_with_a_photograph(python: Path, tmp_path: Path) -> None:
    image = tmp_path / "photograph.jpg"
    image.write_bytes(photograph_bytes())
    with server(StubChat(token_s=0.005), api_key="k1") as (port, _):
        command = [str(python), str(PROGRAM), str(port), str(image)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    seen = f"1 seen of {len(photograph_bytes())}."
    assert found["model"] == "stub-chat"
    assert found["chat_fields"] == sorted({*OPENAI_CHAT} - {"stream"})
    assert found["text_fields"] == sorted({*OPENAI_COMPLETION} - {"stream"})
    assert found["first"] == found["logprobs"] == f"Turn 1: what is this? {seen}"
    assert found["image_tokens"] == 10
    assert found["second"] == found["helper"] == f"Turn 3: are you sure? {seen}"
    assert 1 < found["num_chunks"] <= found["completion_tokens"] == 9
    assert found["texts"] == [" and a", " and b"]
    assert found["clients"] == [f"Turn 1: client {n} 0 seen of 0." for n in range(8)]
    assert found["refused"] == [400, "logit_bias", "unsupported-field"]
    assert found["missing"] == "model_not_found"
    assert found["denied"] == "invalid_api_key"
