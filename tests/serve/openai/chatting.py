"""Bodies of requests, reading what comes back, and a real server on the loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi.testclient import TestClient

from ostinato.cli.run_server import uvicorn_config, wait_until_listening
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.contract import ChatService
from ostinato.serve.openai.settings import ChatSettings
from ostinato.serve.settings import ServerSettings

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def chat(content: Any = "hello there", **fields: Any) -> dict[str, Any]:
    return {"model": "stub-chat", "messages": [{"role": "user", "content": content}], **fields}


def completion(prompt: Any = "once upon", **fields: Any) -> dict[str, Any]:
    return {"model": "stub-chat", "prompt": prompt, **fields}


def events_of(text: str) -> list[Any]:
    """The events of a stream, which ends as it should."""
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: ") for block in blocks[:-1])
    return [json.loads(block[6:]) for block in blocks[:-2]]


def text_of(events: list[Any], index: int = 0) -> str:
    entries = [entry for one in events for entry in one["choices"] if entry["index"] == index]
    return "".join(e["text"] if "text" in e else e["delta"].get("content", "") for e in entries)


def refused(client: TestClient, body: Any, path: str = CHAT, status: int = 400) -> dict[str, Any]:
    """The error of a request that is not served."""
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def wait_for(condition: Any, limit_s: float = 5.0) -> None:
    """Until ``condition()`` holds; fails after ``limit_s``."""
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.002)


@contextmanager
def server(
    service: ChatService, chat_settings: ChatSettings | None = None, **settings: Any
) -> Iterator[tuple[int, uvicorn.Server]]:
    """A real server on a free port, in a thread of this process."""
    chosen = ServerSettings(port=0, **settings)
    app = build_chat_app(service, chosen, chat_settings)
    config = uvicorn_config(app, chosen)
    listener = config.bind_socket()
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until_listening(running)
        app.state.device.wait_until_settled(10)
        yield listener.getsockname()[1], running
    finally:
        running.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive()
