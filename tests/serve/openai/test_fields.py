"""Every field of a request is served, accepted, or answered 400 by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.serve.openai import fields
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.schemas import ChatRequest, CompletionRequest, place_of
from ostinato.serve.settings import ServerSettings
from tests.serve.openai.chatting import CHAT, COMPLETION, chat, completion, refused
from tests.serve.openai.stub import StubChat
from tests.serve.requests import part, ready

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "openai.md"

OPENAI_CHAT_TEXT = """
messages model audio frequency_penalty function_call functions logit_bias logprobs
max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls
prediction presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention
reasoning_effort response_format safety_identifier seed service_tier stop store stream
stream_options temperature tool_choice tools top_logprobs top_p user verbosity
web_search_options
"""
OPENAI_CHAT = OPENAI_CHAT_TEXT.split()
OPENAI_COMPLETION_TEXT = """
model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n
presence_penalty seed stop stream stream_options suffix temperature top_p user
"""
OPENAI_COMPLETION = OPENAI_COMPLETION_TEXT.split()
"""Of the openai client 3.57.0; test_real_client.py compares them with the installed one."""

TOOL = {"type": "function", "function": {"name": "f"}}
REFUSED: dict[str, list[Any]] = {
    "add_generation_prompt": [False],
    "audio": [{"voice": "alloy", "format": "wav"}],
    "best_of": [2],
    "chat_template": ["{{ x }}"],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "continue_final_message": [True],
    "ebnf": ["root ::= x"],
    "echo": [True],
    "function_call": ["auto", {"name": "f"}],
    "functions": [[{"name": "f"}]],
    "include_stop_str_in_output": [True],
    "length_penalty": [2],
    "logit_bias": [{"5": 10}, 3],
    "lora_path": ["x"],
    "metadata": [3],
    "min_tokens": [5, False],
    "mm_processor_kwargs": [{"max_pixels": 3}],
    "modalities": [["text", "audio"], ["audio"]],
    "moderation": [{"model": "x"}],
    "parallel_tool_calls": [True, False],
    "prediction": [{"type": "content", "content": "x"}],
    "priority": [1],
    "prompt_cache_key": [1],
    "prompt_cache_options": [{"mode": "implicit"}],
    "prompt_cache_retention": ["24h"],
    "reasoning_effort": ["low"],
    "regex": ["a+"],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}],
    "safety_identifier": [1],
    "service_tier": ["flex"],
    "skip_special_tokens": [False],
    "store": [True],
    "structured_outputs": [{"json": {}}],
    "suffix": ["x"],
    "tool_choice": ["auto", "required", TOOL],
    "tools": [[TOOL]],
    "use_beam_search": [True],
    "user": [1],
    "verbosity": ["low"],
    "web_search_options": [{}],
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(build_chat_app(StubChat(), ServerSettings(max_items=2))) as client:
        yield ready(client)


def test_every_field_of_openai_stands_in_one_place() -> None:
    for names, model, rules in [
        (OPENAI_CHAT, ChatRequest, fields.CHAT),
        (OPENAI_COMPLETION, CompletionRequest, fields.COMPLETION),
    ]:
        served = set(model.model_fields)
        assert set(names) <= served | set(rules)
        assert not served & set(rules)


def test_every_rule_is_tried_below() -> None:
    assert set(REFUSED) == set(fields.CHAT) | set(fields.COMPLETION)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_served_is_refused_by_name(client: TestClient, name: str) -> None:
    for value in REFUSED[name]:
        for rules, path, body in [
            (fields.CHAT, CHAT, chat()),
            (fields.COMPLETION, COMPLETION, completion()),
        ]:
            if name in rules:
                error = refused(client, {**body, name: value}, path)
                assert (error["param"], error["code"]) == (name, "unsupported-field")
                assert error["message"].startswith(f"{name}: [unsupported-field] {rules[name].why}")


@pytest.mark.parametrize("name", sorted(fields.CHAT))
def test_what_asks_for_nothing_is_accepted(client: TestClient, name: str) -> None:
    rule = fields.CHAT[name]
    examples = {str: "x", dict: {"a": "b"}}
    for value in [None, *rule.values, *(examples[kind] for kind in rule.kinds)]:
        answer = client.post(CHAT, json=chat(max_tokens=1, **{name: value}))
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"frobnicate": 1}, "frobnicate", "there is no such field"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2; it is 2.5"),
        ({"temperature": "1"}, "temperature", 'valid number; it is "1"'),
        ({"top_p": 0}, "top_p", "greater than or equal to 0.000000001"),
        ({"repetition_penalty": 1e-8}, "repetition_penalty", "equal to 0.001; it is 1e-08"),
        ({"n": 0}, "n", "greater than or equal to 1; it is 0"),
        ({"n": 10**9}, "n", "is 1000000000; expected at most 64"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "is 1, and"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items after validation, not 17"),
        ({"stop": 5}, "stop", "a valid string or a valid list; it is 5"),
        ({"stop": ["x" * 2000]}, "stop[0]", f'at most 1024 characters; it is "{"x" * 80}..."'),
        ({"stop": ["a", ""]}, "stop[1]", "at least 1 character"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "greater than or equal to 0"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "no such field"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "should be False",
        ),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": None}, "messages", "valid list; it is null"),
        ({"messages": ["x"]}, "messages[0]", 'should be an object; it is "x"'),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]},
            "messages[0].role",
            "should be 'system', 'developer', 'user' or 'assistant'; it is \"tool\"",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "Field required"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [TOOL]}]},
            "messages[0].tool_calls",
            "at most 0 items",
        ),
        (
            {"messages": [{"role": "system", "content": [part(b"x")]}]},
            "messages[0].content[0]",
            "a system message holds text only",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_place(
    client: TestClient, change: dict[str, Any], param: str, words: str
) -> None:
    error = refused(client, {**chat(), **change})
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ({"type": "input_audio", "input_audio": {}}, ".input_audio", "no such field"),
        ({"type": "input_audio"}, ".type", "'input_audio'; expected text, image_url or video_url"),
        ({"type": "file"}, ".type", "'file'; expected"),
        ({"type": "text"}, ".text", "is missing"),
        ({"type": "image_url"}, ".image_url", "is missing"),
        ({"type": "image_url", "image_url": 3}, ".image_url", "an object or a valid string; it is"),
        ({"type": "image_url", "image_url": {"url": 3}}, ".image_url.url", "valid string"),
        (
            {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
            ".image_url.detail",
            "'auto', 'high' or 'original'",
        ),
    ],
)
def test_wrong_parts_are_refused_with_their_place(
    client: TestClient, content: dict[str, Any], place: str, words: str
) -> None:
    error = refused(client, chat(["x", content][1:]))
    assert error["param"] == f"messages[0].content[0]{place}"
    assert words in error["message"]


def test_too_many_images_are_refused_before_any_is_read(client: TestClient) -> None:
    error = refused(client, chat([part(b"broken")] * 3))
    assert error["message"] == "messages: [request] 3 images and videos, at most 2"


STRING_OR_LIST = "valid string or a valid list"


@pytest.mark.parametrize(
    ("prompt", "place", "words"),
    [
        (None, "prompt", f"{STRING_OR_LIST}; it is null"),
        (3, "prompt", f"{STRING_OR_LIST}; it is 3"),
        ({"a": 1}, "prompt", f"{STRING_OR_LIST}; it is an object"),
        ([], "prompt", "at least 1 item"),
        ([""] * 65, "prompt", "is a list of 65; expected at most 64"),
        ([[1]] * 65, "prompt", "is a list of 65; expected at most 64"),
        ([[]], "prompt[0]", "at least 1 item"),
        ([["a"]], "prompt[0][0]", 'valid integer; it is "a"'),
        ([1.5], "prompt[0]", "a valid string or a valid integer or a valid list; it is 1.5"),
        ([-1], "prompt[0]", "greater than or equal to 0; it is -1"),
        ([2**31], "prompt[0]", f"less than {2**31}; it is {2**31}"),
    ],
)
def test_a_prompt_is_texts_or_ids(client: TestClient, prompt: Any, place: str, words: str) -> None:
    error = refused(client, completion(prompt), COMPLETION)
    assert (error["code"], error["param"]) == ("request", place)
    assert words in error["message"]


def test_answers_to_several_prompts_are_counted_together(client: TestClient) -> None:
    error = refused(client, completion(["a"] * 33, n=2), COMPLETION)
    assert error["message"] == "n: [request] is 2 for each of 33 prompts; expected at most 1"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"temperature": NaN}', b"\xff"])
def test_what_is_no_json_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post(CHAT, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "json")


def test_a_prompt_that_is_too_long_has_openais_code(client: TestClient) -> None:
    error = refused(client, chat("word " * 3000))
    assert error["code"] == "context_length_exceeded"
    assert "at most 1999" in error["message"]


def test_places_leave_out_names_of_types() -> None:
    loc = ("messages", 0, "content", "list[Part]", 1, "image_url", "Url", "url")
    assert place_of(loc) == "messages[0].content[1].image_url.url"


def test_the_document_is_the_table() -> None:
    text = DOCUMENT.read_text()
    for heading, rules in [
        ("## Accepted or refused: chat", fields.CHAT),
        ("## Accepted or refused: text", {"suffix": fields.COMPLETION["suffix"]}),
    ]:
        section = text.partition(heading)[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)
        written = [(name, said.strip().replace("`", ""), why.strip()) for name, said, why in rows]
        assert written == fields.table(rules)
