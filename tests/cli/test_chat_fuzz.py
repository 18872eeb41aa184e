"""Bodies that hypothesis makes up, against a real tiny model: nothing is answered 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ostinato
from ostinato.cli.chat_wiring import ChatAdapter
from ostinato.serve.openai import fields
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.schemas import ChatRequest, CompletionRequest
from ostinato.serve.settings import ServerSettings
from ostinato.vlm.chat import Chat
from tests.cli.test_chat_wiring import BROKEN, HELLO
from tests.serve.openai.chatting import CHAT, COMPLETION
from tests.serve.openai.test_fuzz import MESSAGES, TEXTS, VALUES, answered, bodies
from tests.serve.requests import ready

MODEL = "tiny-qwen3-vl"
SPECIALS = ["<|im_end|>", "<|image_pad|>", "<|vision_start|>", "\x00", "é" * 40, "x" * 400]
WORDS = TEXTS | st.sampled_from(SPECIALS)
PARTS = st.sampled_from([HELLO, BROKEN]) | WORDS.map(lambda text: {"type": "text", "text": text})
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant"]),
            "content": WORDS | st.lists(PARTS, max_size=3),
        }
    ),
    min_size=1,
    max_size=3,
)
IDS = st.lists(st.integers(0, 300) | st.sampled_from([2**31 - 1]), min_size=1, max_size=4)
SAMPLING: dict[str, Any] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 2**31 - 1),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0, 10, exclude_min=True),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.lists(WORDS.filter(bool), max_size=3),
    "stop_token_ids": IDS,
    "ignore_eos": st.booleans(),
    "stream": st.booleans(),
    "n": st.integers(1, 3),
}
EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    off = ostinato.GraphConfig(mode="off")
    sizes: dict[str, Any] = {"max_length": 64, "max_batch": 2, "prefill_rungs": (64,)}
    with ostinato.load_chat(MODEL, device="cpu", graph=off, top_patches=64, **sizes) as made:
        yield made


@pytest.fixture(scope="module")
def client(chat: Chat) -> Iterator[TestClient]:
    with TestClient(build_chat_app(ChatAdapter(MODEL, chat), ServerSettings())) as client:
        yield ready(client)


@pytest.fixture(autouse=True)
def nothing_is_left(chat: Chat) -> Iterator[None]:
    yield
    stats = chat.stats().engine
    assert stats.num_free_pages == stats.num_pages
    assert "error" not in stats.finished


@EXAMPLES
@given(bodies(ChatRequest, fields.CHAT, {"messages": MESSAGES, "stream": st.booleans()}))
def test_chats_of_anything(client: TestClient, body: dict[str, Any]) -> None:
    answered(client, CHAT, {"max_tokens": 2, **body})
    answered(client, CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2} | body)


@EXAMPLES
@given(st.fixed_dictionaries({"messages": TURNS}, optional=SAMPLING), st.integers(1, 4))
def test_chats_that_are_nearly_right(
    client: TestClient, body: dict[str, Any], max_tokens: int
) -> None:
    answered(client, CHAT, {**body, "max_tokens": max_tokens})
    answered(client, "/tokenize", {"messages": body["messages"]})


@EXAMPLES
@given(
    bodies(CompletionRequest, fields.COMPLETION, {"prompt": VALUES}),
    st.fixed_dictionaries({"prompt": WORDS | IDS | st.lists(WORDS | IDS)}, optional=SAMPLING),
)
def test_completions(client: TestClient, wild: dict[str, Any], body: dict[str, Any]) -> None:
    answered(client, COMPLETION, {"max_tokens": 2, **wild})
    answered(client, COMPLETION, {**body, "max_tokens": 3})


@EXAMPLES
@given(WORDS | IDS, IDS | VALUES)
def test_tokens(client: TestClient, prompt: Any, tokens: Any) -> None:
    answered(client, "/tokenize", {"prompt": prompt})
    answered(client, "/detokenize", {"tokens": tokens})
