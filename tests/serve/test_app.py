"""What every route passes, in-process: health, metrics, models, key, limits, ids, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from fastapi.testclient import TestClient

from ostinato.serve.app import build_app
from ostinato.serve.service import Request
from ostinato.serve.settings import ServerSettings
from tests.serve.requests import metric, pooling, ready
from tests.serve.stub import StubService

CONTENT = bytes(range(8))


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def client(service: StubService) -> Iterator[TestClient]:
    settings = ServerSettings(max_queued=1, max_body_bytes=1000)
    with TestClient(build_app(service, settings)) as client:
        yield client
        service.may_warm_up.set()
        service.may_serve.set()


def test_ready_only_after_warm_up(service: StubService) -> None:
    service.may_warm_up.clear()
    with TestClient(build_app(service, ServerSettings())) as client:
        statuses = [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")]
        assert statuses == [200, 200, 503]
        assert client.get("/readyz").json() == {"status": "starting"}
        refused = client.post("/pooling", json=pooling(CONTENT))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["message"] == "the model is starting"
        service.may_warm_up.set()
        assert ready(client).get("/readyz").json() == {"status": "ready"}
    assert service.is_closed


def test_a_failed_warm_up_makes_health_fail(service: StubService) -> None:
    service.warm_up_error = RuntimeError("no weights")
    with TestClient(build_app(service, ServerSettings())) as client:
        answer = ready(client).get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "failed"})


def test_metrics_count_what_happened(client: TestClient) -> None:
    ready(client)
    for _ in range(2):
        assert client.post("/pooling", json=pooling(CONTENT)).status_code == 200
    client.post("/pooling", json=pooling(b"broken"))
    assert metric(client, 'ostinato_replies_total{route="exact"}') == 2
    assert metric(client, 'ostinato_refusals_total{status="400"}') == 1
    assert metric(client, 'ostinato_stage_seconds_sum{stage="replay"}') == pytest.approx(0.01)
    assert metric(client, "ostinato_batch_items_sum") == 2
    assert metric(client, "ostinato_ready") == 1
    assert metric(client, "ostinato_queued") == 0
    assert metric(client, "ostinato_service_recordings") == 3


def test_every_stage_from_socket_to_reply_has_a_metric(client: TestClient) -> None:
    ready(client).post("/pooling", json=pooling(CONTENT))
    for stage in ("read", "parse", "prepare", "decode", "resize", "queue", "pack", "upload"):
        assert metric(client, f'ostinato_stage_seconds_count{{stage="{stage}"}}') == 1
    for stage in ("replay", "reply", "total"):
        assert metric(client, f'ostinato_stage_seconds_count{{stage="{stage}"}}') == 1


def test_two_apps_share_no_metrics(client: TestClient) -> None:
    ready(client).post("/pooling", json=pooling(CONTENT))
    with TestClient(build_app(StubService(), ServerSettings())) as other:
        assert "ostinato_replies_total{" not in other.get("/metrics").text


def test_models_tell_the_services_facts(client: TestClient) -> None:
    answer = client.get("/v1/models").json()
    (model,) = answer["data"]
    assert (answer["object"], model["id"], model["object"]) == ("list", "stub", "model")
    assert model["patch_size"] == 16


def test_a_large_body_is_refused_with_or_without_a_stated_length(client: TestClient) -> None:
    ready(client)
    stated = client.post("/pooling", content=b"x" * 1001)
    assert stated.status_code == 413
    error = stated.json()["error"]
    assert error["message"] == "the body has 1001 bytes, at most 1000 are allowed"
    assert (error["type"], error["code"]) == ("invalid_request_error", "request-too-large")
    chunks = (b"x" * 400 for _ in range(3))
    assert client.post("/pooling", content=chunks).status_code == 413


@pytest.mark.parametrize("content", [b"fail", b"prepare!"])
def test_an_internal_error_shows_an_id_and_no_secret(client: TestClient, content: bytes) -> None:
    answer = ready(client).post("/pooling", json=pooling(content), headers={"x-request-id": "abc"})
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "internal error abc",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert answer.headers["x-request-id"] == "abc"


def test_a_full_queue_answers_at_once(client: TestClient, service: StubService) -> None:
    ready(client)
    service.may_serve.clear()
    device = client.app.state.device  # type: ignore[attr-defined]
    waiting = Request({"image": np.zeros(4, np.uint8)})
    device.submit(waiting)
    while not service.batches:
        time.sleep(0.002)
    device.submit(waiting)
    answer = client.post("/pooling", json=pooling(CONTENT))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["message"] == "1 requests are waiting, 1 may"
    assert client.get("/health").status_code == 200


def test_the_key_guards_everything_but_health(service: StubService) -> None:
    settings = ServerSettings(api_key="k1")
    with TestClient(build_app(service, settings)) as client:
        ready(client)
        assert client.get("/health").status_code == 200
        for path in ("/metrics", "/v1/models"):
            assert client.get(path).status_code == 401
        wrong = client.post(
            "/pooling", json=pooling(CONTENT), headers={"Authorization": "Bearer k2"}
        )
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
        right = client.post(
            "/pooling", json=pooling(CONTENT), headers={"Authorization": "Bearer k1"}
        )
        assert right.status_code == 200


def test_unknown_paths_and_methods_get_the_same_form(client: TestClient) -> None:
    missing, wrong = client.get("/v1/missing"), client.get("/pooling")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["error"]["message"] == "Not Found"
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert len(missing.headers["x-request-id"]) == 32
    assert metric(client, 'ostinato_refusals_total{status="405"}') == 1
