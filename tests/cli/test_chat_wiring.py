"""A tiny chat behind the OpenAI routes: what is served is what the library says."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

import ostinato
from ostinato.assets.photograph import photograph_bytes
from ostinato.cli.chat_wiring import ChatAdapter, is_chat, load_chat_service
from ostinato.cli.config import Settings
from ostinato.cli.sglang_chat_flags import BACKENDS, ChatFlags
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.settings import ServerSettings
from ostinato.vlm.chat import Chat
from tests.serve.openai.chatting import events_of, text_of

MODEL = "tiny-qwen3-vl"


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with ostinato.load_chat(MODEL, device="cpu", top_patches=256) as made:
        yield made


@pytest.fixture(scope="module")
def client(chat: Chat) -> Iterator[TestClient]:
    app = build_chat_app(ChatAdapter(MODEL, chat), ServerSettings())
    with TestClient(app) as made:
        app.state.device.wait_until_settled(10)
        yield made


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_the_prefill_backend_reaches_the_library(
    backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def load(model: str, **options: Any) -> object:
        given.update(options)
        return object()

    monkeypatch.setattr(ostinato, "load_chat", load)
    settings = Settings(ServerSettings(), "cpu", is_recording_on=True, cuda_visible_devices=None)
    compiler = "inductor" if backend == "tc_piecewise" else None
    flags = ChatFlags(prefill_backend=backend, compiler=compiler, prefill_rungs=(16, 64))
    load_chat_service(MODEL, settings, flags, device="cpu")
    assert given["prefill_backend"] == backend
    assert given["prefill_compiler"] == (compiler or "eager")
    assert given["prefill_rungs"] == (16, 64)
    assert given["graph"].mode == "auto", "decode is recorded whatever prefill does"


def test_which_models_can_be_talked_to() -> None:
    assert is_chat(MODEL) and is_chat("tiny-qwen2.5-vl")
    assert not is_chat("tiny-qwen2-vl") and not is_chat("tiny-flux3-action")
    assert not is_chat("/no/such/directory")


def test_a_photograph_and_a_second_turn(client: TestClient, chat: Chat) -> None:
    url = f"data:image/jpeg;base64,{base64.b64encode(photograph_bytes()).decode()}"
    first = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "what is this?"},
    ]
    messages = [{"role": "user", "content": first}]
    wishes = {"max_tokens": 12, "temperature": 0, "seed": 3}
    body = {"model": MODEL, "messages": messages, "logprobs": True, "top_logprobs": 2, **wishes}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice, usage = answer.json()["choices"][0], answer.json()["usage"]
    shown = [
        {"role": "user", "content": [{"type": "image", "image": photograph_bytes()}, first[1]]}
    ]
    want = chat.generate(shown, **wishes)
    assert choice["message"]["content"] == want.text
    assert usage["prompt_tokens"] == want.prompt_tokens
    assert usage["prompt_tokens_details"]["image_tokens"] == want.image_tokens > 0
    entries = choice["logprobs"]["content"]
    assert [bytes(entry["bytes"]) for entry in entries] == [
        chat.token_bytes(i) for i in want.token_ids
    ]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)

    reply = {"role": "assistant", "content": "a town"}
    again = {"role": "user", "content": "are you sure?"}
    body = {"model": MODEL, "messages": [*messages, reply, again], "stream": True, **wishes}
    events = events_of(client.post("/v1/chat/completions", json=body).text)
    assert text_of(events) == chat.generate([*shown, reply, again], **wishes).text


def test_text_tokens_and_their_way_back(client: TestClient, chat: Chat) -> None:
    body = {"model": MODEL, "prompt": "once upon", "max_tokens": 5, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 5
    ids = client.post("/tokenize", json={"model": MODEL, "prompt": "né"}).json()["tokens"]
    assert ids == [*"né".encode()]
    text = client.post("/detokenize", json={"model": MODEL, "tokens": ids}).json()
    assert "né" in text.values()
    turns = [{"role": "user", "content": "hello"}]
    asked = {"model": MODEL, "messages": turns, "add_generation_prompt": False}
    refused = client.post("/tokenize", json=asked)
    assert refused.status_code == 400 and "add_generation_prompt" in refused.text
    opened = client.post("/tokenize", json=asked | {"add_generation_prompt": True}).json()
    assert opened["tokens"] == chat.tokenize(turns)
    error = client.post("/detokenize", json={"model": MODEL, "tokens": [10**6]})
    assert error.status_code == 400


def test_a_broken_image_is_refused_and_the_next_request_served(client: TestClient) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
    refused = client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400, refused.text
    body["messages"] = [{"role": "user", "content": "hello"}]
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    page = client.get("/metrics").text
    assert "vllm:generation_tokens_total" in page
