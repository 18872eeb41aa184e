"""POST /pooling in-process, in every form of reply; and the refusal of /v1/embeddings."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from safetensors import safe_open
from safetensors.numpy import load

from ostinato.serve.app import build_app
from ostinato.serve.settings import ServerSettings
from tests.serve.requests import data_url, part, pooling, ready
from tests.serve.stub import StubService, matrix_of

A, B = bytes(range(8)), bytes(range(100, 112))


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def client(service: StubService) -> Iterator[TestClient]:
    with TestClient(build_app(service, ServerSettings(max_items=3))) as client:
        yield ready(client)
        service.may_serve.set()


def post(client: TestClient, body: dict[str, Any], **headers: str) -> Any:
    answer = client.post("/pooling", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def test_lists_in_the_order_of_the_request(client: TestClient) -> None:
    answer = post(client, pooling(A, B)).json()
    assert answer["object"] == "list"
    assert answer["model"] == "stub"
    assert answer["id"].startswith("pool-")
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0}
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert {item["object"] for item in answer["data"]} == {"pooling"}
    for item, content in zip(answer["data"], (A, B), strict=True):
        assert np.array_equal(np.float32(item["data"]), matrix_of(content))
    assert answer["data"][0]["ostinato"] == {
        "route": "exact",
        "reason": "stub",
        "kind": "image",
        "grid_thw": [1, 2, 4],
    }
    assert "stage_ms" not in answer


def test_base64(client: TestClient) -> None:
    answer = post(client, pooling(A, encoding_format="base64", embed_dtype="float16")).json()
    data = base64.b64decode(answer["data"][0]["data"])
    assert data == matrix_of(A).astype(np.float16).tobytes()


def test_bytes_with_a_table_in_the_header(client: TestClient) -> None:
    body = pooling(A, B, encoding_format="bytes", endianness="big")
    answer = post(client, body)
    assert answer.headers["content-type"] == "application/octet-stream"
    table = json.loads(answer.headers["metadata"])
    spans = [(item["index"], item["start"], item["end"]) for item in table["data"]]
    assert spans == [(0, 0, 32), (1, 32, 80)]
    for item, content in zip(table["data"], (A, B), strict=True):
        assert (item["dtype"], item["embed_dtype"]) == ("float32", "float32")
        assert item["endianness"] == "big"
        values = np.frombuffer(answer.content[item["start"] : item["end"]], ">f4")
        assert np.array_equal(values.reshape(item["shape"]), matrix_of(content))
    assert table["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    "accept", ["application/x-safetensors", "text/html, Application/X-Safetensors;q=1"]
)
def test_safetensors_hold_deepstack_grid_and_route(
    client: TestClient, accept: str, tmp_path: Any
) -> None:
    answer = post(client, pooling(A, B, stage_times=True), accept=accept)
    assert answer.headers["content-type"] == "application/x-safetensors"
    arrays = load(answer.content)
    assert set(arrays) == {f"item.{i}.{n}" for i in (0, 1) for n in ("embeddings", "deepstack.0")}
    assert np.array_equal(arrays["item.1.embeddings"], matrix_of(B))
    assert np.array_equal(arrays["item.1.deepstack.0"], matrix_of(B) + 1)
    path = tmp_path / "reply.safetensors"
    path.write_bytes(answer.content)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    assert (metadata["item.1.grid_thw"], metadata["item.1.route"]) == ("[1,3,4]", "exact")
    assert json.loads(metadata["stage_ms"])["replay"] == 5.0


def test_messages_are_read_in_order(client: TestClient) -> None:
    messages = [
        {"role": "user", "content": [part(A), part(B, "video_url")]},
        {"role": "user", "content": [part(A)]},
    ]
    answer = post(client, {"task": "token_embed", "messages": messages}).json()
    matrices = [np.float32(item["data"]) for item in answer["data"]]
    assert [len(matrix) for matrix in matrices] == [2, 3, 2]
    assert [item["ostinato"]["kind"] for item in answer["data"]] == ["image", "video", "image"]


@pytest.mark.parametrize("headers", [{}, {"x-ostinato-stage-times": "1"}])
def test_stage_times_on_request(client: TestClient, headers: dict[str, str]) -> None:
    body = pooling(A, B, stage_times=not headers)
    stages = post(client, body, **headers).json()["stage_ms"]
    order = ["read", "parse", "prepare", "queue", "decode", "resize", "pack", "upload", "replay"]
    assert list(stages) == [*order, "reply", "total"]
    assert (stages["decode"], stages["resize"]) == (2.0, 4.0)  # each item's own, added up
    assert (stages["pack"], stages["upload"], stages["replay"]) == (3.0, 4.0, 5.0)  # shared
    assert stages["total"] >= stages["read"] + stages["parse"] + stages["prepare"]


def test_options_reach_the_service(client: TestClient, service: StubService) -> None:
    post(client, pooling(A, mm_processor_kwargs={"max_pixels": 4096, "fps": 1.5}))
    assert service.options == [{"max_pixels": 4096, "fps": 1.5}]


def test_a_held_answer_takes_no_turn(client: TestClient, service: StubService) -> None:
    held = b"heldheld"
    answer = post(client, pooling(A, held)).json()
    assert [item["ostinato"]["route"] for item in answer["data"]] == ["exact", "cache"]
    assert np.array_equal(np.float32(answer["data"][1]["data"]), matrix_of(held))
    assert service.batches == [1]
    post(client, pooling(held))
    assert service.batches == [1]


def test_requests_that_arrive_together_share_a_turn(
    client: TestClient, service: StubService
) -> None:
    service.may_serve.clear()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(post, client, pooling(A))
        while not service.batches:
            pass
        others = [pool.submit(post, client, pooling(A, B)) for _ in range(4)]
        device = client.app.state.device  # type: ignore[attr-defined]
        while device.num_queued < 8:
            pass
        service.may_serve.set()
        for future in (first, *others):
            for item, content in zip(future.result().json()["data"], (A, B), strict=False):
                assert np.array_equal(np.float32(item["data"]), matrix_of(content))
    assert service.batches == [1, 8]


def test_only_the_device_thread_serves_and_workers_prepare(
    client: TestClient, service: StubService
) -> None:
    post(client, pooling(A))
    assert service.threads == {"ostinato-device"}
    assert all(name.startswith("ostinato-request") for name in service.prepare_threads)


def refused(client: TestClient, body: Any) -> dict[str, Any]:
    answer = client.post("/pooling", json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_a_broken_item_is_named_and_the_others_of_the_replay_are_served(
    client: TestClient, service: StubService
) -> None:
    error = refused(client, pooling(A, b"broken"))
    assert error["message"] == "input[1].image_url: [broken-image] PNG data: cut off"
    assert (error["code"], error["param"]) == ("broken-image", "input[1].image_url")
    assert service.batches == []
    post(client, pooling(B))


def with_part(**fields: Any) -> dict[str, Any]:
    return {"task": "token_embed", "input": [fields]}


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ([], "request", "the body: "),
        ({"task": "embed", "input": [part(A)]}, "task", "task is 'embed'; a vision tower gives"),
        ({"task": "token_embed"}, "request", "either messages or input"),
        ({"input": [part(A)], "messages": []}, "request", "either messages or input"),
        (pooling(), "no-media", "no image_url and no video_url"),
        (pooling(A, A, A, A), "max-items", "4 images and videos, at most 3"),
        (pooling(A, dimensions=3), "request", "dimensions: "),
        (pooling(A, colour="red"), "request", "colour: "),
        (
            pooling(A, mm_processor_kwargs={"max_pixel": 1}),
            "request",
            "mm_processor_kwargs.max_pixel",
        ),
        (pooling(A, mm_processor_kwargs={"max_pixels": "1"}), "request", "max_pixels"),
        (with_part(type="text", text="hello"), "text", "input[0] is text"),
        ({"input": "hello"}, "text", "input is text"),
        (with_part(type="audio_url"), "part", "input[0].type is 'audio_url'"),
        (with_part(type="image_url"), "part", "input[0] has type image_url and no image_url"),
        (with_part(type="image_url", image_url="file:///etc/passwd"), "no-files", "reads no files"),
        (with_part(type="image_url", image_url={"url": "https://a.b/c"}), "no-network", "a.b"),
        (with_part(type="image_url", image_url="data:image/png"), "data-url", "no comma"),
    ],
)
def test_what_cannot_be_served_names_the_rule(
    client: TestClient, body: Any, code: str, message: str
) -> None:
    error = refused(client, body)
    assert error["code"] == code
    assert message in error["message"]


def test_an_unknown_model_is_404(client: TestClient) -> None:
    answer = client.post("/pooling", json=pooling(A, model="other"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    post(client, pooling(A, model="stub"))


def test_embeddings_send_the_caller_to_pooling(client: TestClient) -> None:
    answer = client.post("/v1/embeddings", json={"model": "stub", "input": "x"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert 'POST /pooling with "task": "token_embed"' in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_url_alone_is_a_part_too(client: TestClient) -> None:
    body = with_part(type="image_url", image_url=data_url(A))
    assert np.array_equal(np.float32(post(client, body).json()["data"][0]["data"]), matrix_of(A))
