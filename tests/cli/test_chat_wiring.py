"""A tiny chat behind the OpenAI routes: what is served is what the library says."""

from __future__ import annotations

import base64
import io
import queue
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import ostinato
from ostinato.assets.photograph import photograph_bytes
from ostinato.cli.chat_wiring import ChatAdapter, is_chat, load_chat_service
from ostinato.cli.config import Settings
from ostinato.cli.sglang_chat_flags import BACKENDS, ChatFlags
from ostinato.errors import InputError
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.contract import Delta, Sampling
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


@pytest.mark.parametrize("rungs", [(), (32, 64)])
def test_flags_that_cut_no_prompt_and_share_no_page(chat: Chat, rungs: tuple[int, ...]) -> None:
    settings = Settings(ServerSettings(), "cpu", is_recording_on=False, cuda_visible_devices=None)
    flags = ChatFlags(
        chunk_tokens=-1, context_tokens=300, prefill_rungs=rungs, is_prefix_cache_on=False
    )
    service = load_chat_service(MODEL, settings, flags, device="cpu")
    try:
        prompt, how = "once upon a time " * 15, Sampling(max_tokens=5, temperature=0.0)
        want = chat.generate(prompt, max_tokens=5, temperature=0.0)
        for _ in range(2):
            deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
            ticket = service.submit(prompt, how, deltas.put)
            got = [deltas.get(timeout=60)]
            while got[-1].finish_reason is None:
                got.append(deltas.get(timeout=60))
            assert tuple(i for delta in got for i in delta.token_ids) == want.token_ids
            assert ticket.cached_tokens == 0
        prefill = service._chat._engine._prefill._ladder
        assert (prefill.top, prefill.fit(255)) == (304, 304)
        counted = service.snapshot()
        assert (counted["prefix_cache_queries"], counted["prefix_cache_hits"]) == (0, 0)
    finally:
        service.close()


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


def test_the_encoders_routes_are_counted_as_an_encoders(client: TestClient, chat: Chat) -> None:
    def counted(name: str) -> float:
        rows = client.get("/metrics").text.splitlines()
        return sum(float(row.split()[1]) for row in rows if row.startswith(f"{name} "))

    def replies(route: str) -> float:
        return counted(f'ostinato_replies_total{{route="{route}"}}')

    buffer = io.BytesIO()
    Image.new("RGB", (64, 96), (20, 90, 200)).save(buffer, "PNG")
    picture = _image(f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}")
    before = {route: replies(route) for route in ("exact", "rung", "direct", "cache")}
    calls = sum(chat.stats().encoder.calls.values())
    for _ in range(2):
        assert client.post(CHAT, json=_ask(picture, HELLO, max_tokens=1)).status_code == 200
    found = {route: replies(route) - count for route, count in before.items()}
    assert found["cache"] == 1 and sum(found.values()) == 2, found
    stats = chat.stats().encoder
    assert sum(stats.calls.values()) == calls + 1
    for route, count in stats.calls.items():
        assert counted(f"ostinato_service_calls_{route}") == count
    assert counted("ostinato_service_num_recordings") == stats.num_recordings > 0
    assert counted("ostinato_service_rows_padded") == stats.rows_padded


def test_text_tokens_and_their_way_back(client: TestClient, chat: Chat) -> None:
    body = {"model": MODEL, "prompt": "once upon", "max_tokens": 5, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 5
    ids = client.post("/tokenize", json={"model": MODEL, "prompt": "né"}).json()["tokens"]
    assert ids == [*"né".encode()]
    text = client.post("/detokenize", json={"model": MODEL, "tokens": ids}).json()
    assert text == {"prompt": "né"}
    marked = {"prompt": "a é<|im_end|>", "add_special_tokens": True, "return_token_strs": True}
    found = client.post("/tokenize", json=marked).json()
    assert found["token_strs"] == ["a", "Ġ", "Ã", "©", "<|im_end|>"]
    back = client.post("/detokenize", json={"tokens": found["tokens"]}).json()
    assert back == {"prompt": marked["prompt"]}
    turns = [{"role": "user", "content": "hello"}]
    asked = {"model": MODEL, "messages": turns, "add_generation_prompt": False}
    refused = client.post("/tokenize", json=asked)
    assert refused.status_code == 400 and "add_generation_prompt" in refused.text
    opened = client.post("/tokenize", json=asked | {"add_generation_prompt": True}).json()
    assert opened["tokens"] == chat.tokenize(turns)
    error = client.post("/detokenize", json={"model": MODEL, "tokens": [10**6]})
    assert error.status_code == 400


def _image(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data}}


def _ask(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], **fields}


HELLO = {"type": "text", "text": "hello"}
BROKEN = _image("data:image/png;base64,AAAA")
PLACEHOLDER = {"type": "text", "text": "a <|image_pad|>"}
CHAT, COMPLETION, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
REFUSED: dict[str, tuple[str, dict[str, Any], str | None, str | None, str]] = {
    "broken image": (CHAT, _ask(HELLO, BROKEN), "messages[0].content[1].image_url", None, "image"),
    "broken image, counted only": (
        *(TOKENIZE, _ask(BROKEN), "messages[0].content[0].image_url", None, "image"),
    ),
    "broken video": (
        CHAT,
        _ask(HELLO, {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}),
        *("messages[0].content[1].video_url", None, "video"),
    ),
    "a text that passes for an image": (
        *(CHAT, _ask(HELLO, PLACEHOLDER), "messages[0].content[1]", None, "media only"),
    ),
    "the same without a list": (
        CHAT,
        {"messages": [{"role": "user", "content": PLACEHOLDER["text"]}]},
        *("messages[0].content", None, "media only"),
    ),
    "a prompt that does": (
        *(COMPLETION, {"prompt": PLACEHOLDER["text"]}, "prompt", None, "media only"),
    ),
    "a conversation beyond the context": (
        CHAT,
        _ask({"type": "text", "text": "x" * 3000}, max_tokens=2),
        *("messages", "context_length_exceeded", "context length is 2048 tokens"),
    ),
    "a reply beyond the context": (
        COMPLETION,
        {"prompt": "once", "max_tokens": 2045},
        *("prompt", "context_length_exceeded", "2049 (4 in the prompt, 2045 in the completion)"),
    ),
    "ids that do not exist": (COMPLETION, {"prompt": [1, 10**6]}, "prompt", None, "id 1000000"),
    "an id that stands for an image": (
        *(COMPLETION, {"prompt": [261]}, "prompt", None, "image_token_id"),
    ),
    "no prompt": (COMPLETION, {"prompt": ""}, "prompt", None, "empty"),
    "a penalty of nothing": (
        COMPLETION,
        {"prompt": "a", "repetition_penalty": 1e-8},
        *("repetition_penalty", "request", "greater than or equal to 0.001; it is 1e-08"),
    ),
    "a conversation that is not answered": (
        TOKENIZE,
        _ask(HELLO, add_generation_prompt=False),
        *("add_generation_prompt", "request", "is false; expected true"),
    ),
}


@pytest.mark.parametrize("which", REFUSED)
@pytest.mark.parametrize("is_stream", [False, True])
def test_what_cannot_be_served_is_answered_400_with_its_field(
    client: TestClient, which: str, is_stream: bool
) -> None:
    path, body, param, code, said = REFUSED[which]
    if is_stream and path != TOKENIZE:
        body = {**body, "stream": True}
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert said in error["message"]
    if code is not None:
        assert error["code"] == code


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_choices_have_seeds_of_their_own_at_both_ends(client: TestClient, seed: int) -> None:
    body = {"prompt": "a", "n": 2, "max_tokens": 8, "temperature": 2}
    one, two = client.post(COMPLETION, json={**body, "seed": seed}).json()["choices"]
    following = -(2**63) if seed > 0 else seed + 1
    alone = client.post(COMPLETION, json={**body, "n": 1, "seed": following}).json()["choices"]
    assert two["text"] == alone[0]["text"] != one["text"]


def test_media_that_the_engine_cannot_encode_and_a_step_that_fails(
    client: TestClient, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"data:image/jpeg;base64,{base64.b64encode(photograph_bytes()).decode()}"
    body = _ask(HELLO, _image(url), max_tokens=2)

    def fail(error: Exception) -> Any:
        def failing(*_: object) -> None:
            raise error

        return failing

    with monkeypatch.context() as patch:
        patch.setattr(chat._encoder, "encode_items", fail(InputError("[too-large] no room")))
        refused = client.post(CHAT, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too-large")
    with monkeypatch.context() as patch:
        patch.setattr(chat._engine._decode, "_inputs", fail(RuntimeError("secret")))
        broken = client.post(CHAT, json=body)
        assert broken.status_code == 500 and "secret" not in broken.text
        stream = client.post(CHAT, json={**body, "stream": True}).text
        assert "internal error" in stream and "secret" not in stream
    with monkeypatch.context() as patch:
        patch.setattr(chat._engine, "_max_waiting", 0)
        busy = client.post(CHAT, json=body)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert client.post(CHAT, json=body).status_code == 200


def test_after_a_broken_image_the_next_request_is_served(client: TestClient) -> None:
    assert client.post(CHAT, json=_ask(BROKEN, max_tokens=2)).status_code == 400
    assert client.post(CHAT, json=_ask(HELLO, max_tokens=2)).status_code == 200
    page = client.get("/metrics").text
    assert "vllm:generation_tokens_total" in page
