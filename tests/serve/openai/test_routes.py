"""Completions of both kinds against the stub, in-process: shapes, sampling, usage, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.contract import Conversation, Media, Sampling, Text
from ostinato.serve.openai.schemas import ChatRequest, CompletionRequest
from ostinato.serve.openai.settings import ChatSettings
from ostinato.serve.settings import ServerSettings
from tests.serve.openai.chatting import (
    CHAT,
    COMPLETION,
    chat,
    completion,
    events_of,
    refused,
    text_of,
)
from tests.serve.openai.stub import StubChat
from tests.serve.requests import data_url, metric, part, ready

SAID = "Turn 1: hello there 0 seen of 0."


@pytest.fixture
def service() -> StubChat:
    return StubChat()


@pytest.fixture
def client(service: StubChat) -> Iterator[TestClient]:
    settings = ServerSettings(max_queued=8, max_body_bytes=100_000, max_items=3)
    with TestClient(build_chat_app(service, settings, ChatSettings(max_choices=4))) as client:
        yield ready(client)
        service.may_draw.set()
        service.may_submit.set()


def test_a_whole_answer_has_openais_shape(client: TestClient) -> None:
    reply = client.post(CHAT, json=chat(), headers={"x-request-id": "abc"})
    answer = reply.json()
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "model": "stub-chat",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": SAID, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 8,
            "total_tokens": 12,
            "prompt_tokens_details": {"image_tokens": 0, "text_tokens": 4, "cached_tokens": 3},
        },
    }
    assert reply.headers["x-request-id"] == "abc"


def test_a_stream_begins_with_the_role_and_ends_with_reason_and_usage(client: TestClient) -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    reply = client.post(CHAT, json=body, headers={"x-request-id": "abc"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply.text)
    assert {(e["id"], e["object"], e["model"]) for e in events} == {
        ("chatcmpl-abc", "chat.completion.chunk", "stub-chat")
    }
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == SAID
    reasons = [e["choices"][0]["finish_reason"] for e in events[:-1]]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    assert [e["usage"] for e in events[:-1]] == [None] * (len(events) - 1)
    assert (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]) == ([], 8)


def test_without_the_option_no_chunk_speaks_of_usage(client: TestClient) -> None:
    events = events_of(client.post(CHAT, json=chat(stream=True)).text)
    assert all("usage" not in event for event in events)


def test_a_conversation_reaches_the_service_in_order(client: TestClient, service: StubChat) -> None:
    content = [
        {"type": "text", "text": "what is"},
        part(b"cat1"),
        {"type": "text", "text": "this?"},
    ]
    content.append(part(b"clip", "video_url"))
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": content, "name": "ann"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a cat"}],
            "refusal": None,
            "annotations": None,
        },
        {"role": "user", "content": "sure?"},
    ]
    answer = client.post(CHAT, json={"messages": messages}).json()
    prompt, _ = service.submitted[0]
    assert isinstance(prompt, Conversation)
    assert [m.role for m in prompt.messages] == ["system", "user", "assistant", "user"]
    assert prompt.messages[1].parts == (
        Text("what is"),
        Media("image", b"cat1", "messages[1].content[1].image_url"),
        Text("this?"),
        Media("video", b"clip", "messages[1].content[3].video_url"),
    )
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 20
    assert {name.rpartition("_")[0] for name in service.submit_threads} == {"ostinato-request"}


def test_frames_of_a_video_may_come_one_by_one(client: TestClient, service: StubChat) -> None:
    url = "data:video/jpeg;base64,QUE=,QkI="
    client.post(CHAT, json=chat([{"type": "video_url", "video_url": {"url": url}}]))
    prompt = service.submitted[0][0]
    assert isinstance(prompt, Conversation)
    (media,) = prompt.messages[0].parts
    assert isinstance(media, Media) and media.content == [b"AA", b"BB"]
    error = refused(client, chat([{"type": "image_url", "image_url": url}]))
    assert error["param"] == "messages[0].content[0].image_url"


def test_what_a_request_does_not_say_the_checkpoint_says(
    client: TestClient, service: StubChat
) -> None:
    client.post(CHAT, json=chat())
    client.post(CHAT, json=chat(temperature=0, top_k=-1, max_tokens=3))
    client.post(COMPLETION, json=completion())
    found = [sampling for _, sampling in service.submitted]
    assert found[0] == Sampling(temperature=0.7, top_k=20)
    assert found[1] == Sampling(temperature=0, top_k=0, max_tokens=3)
    assert found[2] == Sampling(temperature=0.7, top_k=20, max_tokens=16)


def test_every_sampling_field_arrives(client: TestClient, service: StubChat) -> None:
    given = {
        "temperature": 1.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": -1,
        "frequency_penalty": 0.5, "repetition_penalty": 1.1, "seed": 5, "stop": ["x", "yz"],
        "stop_token_ids": [3, 4], "ignore_eos": True,
    }  # fmt: skip
    wanted = Sampling(
        max_tokens=9, temperature=1.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=-1,
        frequency_penalty=0.5, repetition_penalty=1.1, seed=5, stop=("x", "yz"),
        stop_token_ids=(3, 4), logprobs=2, ignore_eos=True,
    )  # fmt: skip
    more = {"max_completion_tokens": 9, "logprobs": True, "top_logprobs": 2}
    assert client.post(CHAT, json=chat(**given, **more)).status_code == 200
    more = {"max_tokens": 9, "logprobs": 2}
    assert client.post(COMPLETION, json=completion(**given, **more)).status_code == 200
    assert [sampling for _, sampling in service.submitted] == [wanted, wanted]


@pytest.mark.parametrize("is_stream", [False, True])
def test_stop_strings_and_lengths_end_an_answer(client: TestClient, is_stream: bool) -> None:
    def ask(**fields: Any) -> tuple[str, str]:
        answer = client.post(CHAT, json=chat(stream=is_stream, **fields))
        if is_stream:
            events = events_of(answer.text)
            return text_of(events), events[-1]["choices"][0]["finish_reason"]
        (choice,) = answer.json()["choices"]
        return choice["message"]["content"], choice["finish_reason"]

    assert ask(stop="there 0") == ("Turn 1: hello ", "stop")  # over three tokens
    assert ask(stop=["seen", "hello"]) == ("Turn 1: ", "stop")
    assert ask(max_tokens=3) == ("Turn 1: hello", "length")


def test_logprobs_of_a_chat(client: TestClient) -> None:
    body = chat(logprobs=True, top_logprobs=2, max_tokens=2)
    whole = client.post(CHAT, json=body).json()["choices"][0]["logprobs"]
    first = {"token": "Turn", "logprob": -0.5, "bytes": [84, 117, 114, 110]}
    other = {"token": "no", "logprob": -9999.0, "bytes": [110, 111]}
    assert whole["content"][0] == {**first, "top_logprobs": [first, other]}
    assert (len(whole["content"]), whole["refusal"]) == (2, None)
    events = events_of(client.post(CHAT, json={**body, "stream": True}).text)
    streamed = [e["choices"][0]["logprobs"] for e in events]
    assert streamed[0] is None
    assert [entry for one in streamed[1:] for entry in one["content"]] == whole["content"]
    bare = client.post(CHAT, json=chat(logprobs=True)).json()["choices"][0]["logprobs"]
    assert bare["content"][0]["top_logprobs"] == []


def test_logprobs_of_a_completion(client: TestClient) -> None:
    body = completion("a", logprobs=1, max_tokens=3)
    whole = client.post(COMPLETION, json=body).json()["choices"][0]["logprobs"]
    assert whole == {
        "tokens": [" and", " a", " again"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{" and": -0.5}, {" a": -0.5}, {" again": -0.5}],
        "text_offset": [0, 4, 6],
    }
    events = events_of(client.post(COMPLETION, json={**body, "stream": True}).text)
    parts = [e["choices"][0]["logprobs"] for e in events]
    assert {key: [v for one in parts for v in one[key]] for key in whole} == whole


def test_several_answers_and_several_prompts(client: TestClient, service: StubChat) -> None:
    body = completion(["a", "b"], n=2, seed=7, max_tokens=2)
    answer = client.post(COMPLETION, json=body).json()
    assert [c["text"] for c in answer["choices"]] == [" and a", " and a", " and b", " and b"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [s.seed for _, s in service.submitted] == [7, 8, 7, 8]
    assert answer["usage"]["prompt_tokens"] == 2  # each prompt once
    assert answer["usage"]["completion_tokens"] == 8
    events = events_of(client.post(COMPLETION, json={**body, "stream": True}).text)
    assert [text_of(events, i) for i in range(4)] == [c["text"] for c in answer["choices"]]
    events = events_of(client.post(CHAT, json=chat(n=2, stream=True)).text)
    assert [text_of(events, i) for i in range(2)] == [SAID, SAID]
    assert refused(client, chat(n=5))["param"] == "n"


def test_prompts_may_be_token_ids(client: TestClient, service: StubChat) -> None:
    ids = client.post("/tokenize", json={"prompt": "one two"}).json()["tokens"]
    answer = client.post(COMPLETION, json=completion(ids)).json()
    assert answer["choices"][0]["text"] == " and one two again"
    client.post(COMPLETION, json=completion([ids, ids]))
    assert [prompt for prompt, _ in service.submitted] == [tuple(ids)] * 3


def test_tokens_there_and_back(client: TestClient) -> None:
    body = {"model": "stub-chat", "messages": chat("hello there")["messages"]}
    found = client.post("/tokenize", json=body).json()
    assert (found["count"], found["max_model_len"]) == (4, 2000)
    text = client.post("/detokenize", json={"tokens": found["tokens"]}).json()
    assert text == {"prompt": "<user>hello there<answer>"}
    body["add_generation_prompt"] = False
    assert client.post("/tokenize", json=body).json()["count"] == 3
    assert refused(client, {"tokens": [999]}, "/detokenize")["code"] == "token-id"
    assert refused(client, {"tokens": [-1]}, "/detokenize")["param"] == "tokens[0]"
    both = {"prompt": "a", "messages": body["messages"]}
    assert "either prompt or messages" in refused(client, both, "/tokenize")["message"]


def test_tokens_by_vllms_options(client: TestClient) -> None:
    asked = {"prompt": "hello there"}
    plain = client.post("/tokenize", json=asked).json()
    assert plain["token_strs"] is None
    for off in (False, None):
        assert client.post("/tokenize", json=asked | {"add_special_tokens": off}).json() == plain
    options = {"add_special_tokens": True, "return_token_strs": True}
    found = client.post("/tokenize", json=asked | options).json()
    assert found["token_strs"] == ["<begin>", "hello", "Ġthere"]
    assert found["count"] == 3 and found["tokens"][1:] == plain["tokens"]
    messages = {"messages": chat("hello")["messages"]}
    told = client.post("/tokenize", json={**messages, "return_token_strs": True}).json()
    assert told["token_strs"] == ["<user>", "hello", "<answer>"]
    error = refused(client, messages | options, "/tokenize")
    assert error["param"] == "add_special_tokens" and "expected false" in error["message"]


def test_models_can_be_listed_and_looked_up(client: TestClient) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    assert (listed["id"], listed["max_model_len"]) == ("stub-chat", 2000)
    assert client.get("/v1/models/stub-chat").json() == listed
    missing = client.get("/v1/models/org/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert refused(client, chat() | {"model": "other"}, status=404)["code"] == "model_not_found"


def test_metrics_have_vllms_names(client: TestClient) -> None:
    client.post(CHAT, json=chat())
    client.post(CHAT, json=chat(max_tokens=1, stream=True))
    one = '{model_name="stub-chat"}'
    assert metric(client, f"vllm:prompt_tokens_total{one}") == 8
    assert metric(client, f"vllm:generation_tokens_total{one}") == 9
    assert metric(client, f"vllm:time_to_first_token_seconds_count{one}") == 2
    assert metric(client, f"vllm:inter_token_latency_seconds_count{one}") == 7
    assert metric(client, f"vllm:time_per_output_token_seconds_count{one}") == 1
    assert metric(client, f"vllm:e2e_request_latency_seconds_count{one}") == 2
    assert metric(client, f"vllm:request_generation_tokens_sum{one}") == 9
    for reason in ("stop", "length"):
        name = f'vllm:request_success_total{{finished_reason="{reason}",model_name="stub-chat"}}'
        assert metric(client, name) == 1
    assert metric(client, f"vllm:num_requests_running{one}") == 0
    assert metric(client, f"vllm:num_requests_waiting{one}") == 0
    assert metric(client, f"vllm:kv_cache_usage_perc{one}") == 0.25
    assert metric(client, f"vllm:prefix_cache_hits_total{one}") == 6
    assert metric(client, "ostinato_ready") == 1


@pytest.mark.parametrize("is_stream", [False, True])
def test_images_are_counted_by_how_they_were_served(client: TestClient, is_stream: bool) -> None:
    client.post(CHAT, json=chat([part(b"cat"), part(b"dog")], n=2, stream=is_stream))
    client.post(CHAT, json=chat([part(b"cat")], stream=is_stream))
    assert metric(client, 'ostinato_replies_total{route="rung"}') == 3
    assert metric(client, 'ostinato_replies_total{route="cache"}') == 2


def test_a_url_is_read_only_where_a_flag_allows_it(client: TestClient) -> None:
    for url, code in [
        ("https://example.org/a.png", "no-network"),
        ("file:///etc/passwd", "no-files"),
        ("data:image/png;base64,###", "data-url"),
        (data_url(b""), "empty"),
        (data_url(b"broken"), "broken-image"),
        ("cat.png", "url"),
    ]:
        error = refused(client, chat([{"type": "image_url", "image_url": {"url": url}}]))
        assert (error["code"], error["param"]) == (code, "messages[0].content[0].image_url")


def test_openapi_tells_every_served_field(client: TestClient) -> None:
    page = client.get("/openapi.json").json()
    assert "$defs" not in client.get("/openapi.json").text
    for path, kind in [(CHAT, ChatRequest), (COMPLETION, CompletionRequest)]:
        body = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert set(body["schema"]["properties"]) == set(kind.model_fields)
    parts = page["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert parts["properties"]["messages"]["items"]["required"] == ["role"]
