"""Bodies that hypothesis makes up: whatever is sent, nothing is answered 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.serve.openai import fields
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.schemas import ChatRequest, CompletionRequest
from ostinato.serve.settings import ServerSettings
from tests.serve.openai.chatting import CHAT, COMPLETION, chat, completion
from tests.serve.openai.stub import StubChat
from tests.serve.requests import ready

TEXTS = st.text(max_size=8) | st.sampled_from(["\ud800", "\x00", "user", "text", "data:,x", "{}"])
NUMBERS = st.integers(-3, 40) | st.sampled_from([2**31, 2**63, 10**30, 10**400, -(10**30)])
PLAIN = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=True) | TEXTS
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)
URLS = TEXTS | st.sampled_from(["data:image/png;base64,QUE=", "file:///x", "http://[::1", "data:,"])
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "video_url", "input_audio"]) | TEXTS},
    optional={
        "text": TEXTS | VALUES,
        "image_url": st.fixed_dictionaries({"url": URLS}) | URLS | VALUES,
        "video_url": st.fixed_dictionaries({"url": URLS}) | URLS | VALUES,
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]) | TEXTS},
        optional={"content": TEXTS | st.lists(PARTS, max_size=3) | VALUES, "name": VALUES},
    ),
    max_size=3,
)


def bodies(model: Any, rules: Any, wild: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from([*model.model_fields, *rules]) | TEXTS
    return st.builds(
        lambda some, more: {**some, **more},
        st.fixed_dictionaries({}, optional=wild),
        st.dictionaries(names, VALUES, max_size=3),
    )


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(build_chat_app(StubChat(), ServerSettings())) as client:
        yield ready(client)


def answered(client: TestClient, path: str, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


EXAMPLES = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@EXAMPLES
@given(bodies(ChatRequest, fields.CHAT, {"messages": MESSAGES, "stream": st.booleans()}))
def test_chat_bodies(client: TestClient, body: dict[str, Any]) -> None:
    answered(client, CHAT, body)
    answered(client, CHAT, {**chat(), **body})


@EXAMPLES
@given(bodies(CompletionRequest, fields.COMPLETION, {"stream": st.booleans(), "prompt": VALUES}))
def test_completion_bodies(client: TestClient, body: dict[str, Any]) -> None:
    answered(client, COMPLETION, body)
    answered(client, COMPLETION, {**completion(), **body})


@EXAMPLES
@given(st.dictionaries(st.sampled_from(["prompt", "tokens", "messages", "model"]), VALUES))
def test_token_bodies(client: TestClient, body: dict[str, Any]) -> None:
    answered(client, "/tokenize", body)
    answered(client, "/detokenize", body)


@EXAMPLES
@given(st.binary(max_size=30) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_anything(client: TestClient, body: bytes) -> None:
    for path in (CHAT, COMPLETION, "/tokenize", "/detokenize"):
        answered(client, path, body)
    answered(client, CHAT, b'{"messages":' + b"[" * 5000)
