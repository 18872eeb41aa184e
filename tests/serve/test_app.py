"""The routes, in-process: health, metrics, encode, key, limits, ids, errors."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from ostinato.serve.app import build_app
from ostinato.serve.settings import ServerSettings
from tests.serve.stub import StubService

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def png(array: np.ndarray = PIXELS) -> bytes:
    target = io.BytesIO()
    Image.fromarray(array).save(target, format="PNG")
    return target.getvalue()


def ready(client: TestClient) -> TestClient:
    client.app.state.device.wait_until_settled(10)  # type: ignore[attr-defined]
    return client


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def client(service: StubService) -> Iterator[TestClient]:
    settings = ServerSettings(max_queued=1, max_body_bytes=1000, max_image_pixels=100)
    with TestClient(build_app(service, settings)) as client:
        yield client
        service.may_warm_up.set()
        service.may_serve.set()


def metric(client: TestClient, line: str) -> float:
    page = client.get("/metrics").text
    found = [row for row in page.splitlines() if row.startswith(f"{line} ")]
    assert len(found) == 1, page
    return float(found[0].rpartition(" ")[2])


def test_encode_returns_the_services_array(client: TestClient) -> None:
    answer = ready(client).post("/encode", content=png()).json()
    tokens = answer["outputs"]["tokens"]
    values = np.frombuffer(base64.b64decode(tokens["data"]), tokens["dtype"])
    assert np.array_equal(values.reshape(tokens["shape"]), PIXELS * np.float32(2))
    assert (answer["model"], answer["route"], answer["reason"]) == ("stub", "exact", "stub")
    assert set(answer["stage_ms"]) == {"decode", "queue", "encode"}
    assert answer["stage_ms"]["encode"] == 4.0


def test_ready_only_after_warm_up(service: StubService) -> None:
    service.may_warm_up.clear()
    with TestClient(build_app(service, ServerSettings())) as client:
        statuses = [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")]
        assert statuses == [200, 200, 503]
        assert client.get("/readyz").json() == {"status": "starting"}
        refused = client.post("/encode", content=png())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
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
        client.post("/encode", content=png())
    client.post("/encode", content=b"no image")
    assert metric(client, 'ostinato_replies_total{route="exact"}') == 2
    assert metric(client, 'ostinato_refusals_total{status="400"}') == 1
    assert metric(client, 'ostinato_stage_seconds_sum{stage="encode"}') == pytest.approx(0.008)
    assert metric(client, "ostinato_ready") == 1
    assert metric(client, "ostinato_queued") == 0
    assert metric(client, "ostinato_service_recordings") == 3


def test_two_apps_share_no_metrics(client: TestClient) -> None:
    ready(client).post("/encode", content=png())
    with TestClient(build_app(StubService(), ServerSettings())) as other:
        assert "ostinato_replies_total{" not in other.get("/metrics").text


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 400, "the body is empty; it must be an image file"),
        (b"no image", 400, "the body is not an image that can be read"),
        (png()[:45], 400, "the body is not an image that can be read"),
        (png(np.zeros((11, 10, 3), np.uint8)), 400, "10 x 11 pixels, at most 100 are allowed"),
        (b"x" * 1001, 413, "the body has 1001 bytes, at most 1000 are allowed"),
    ],
    ids=["empty", "text", "truncated", "too many pixels", "too many bytes"],
)
def test_what_cannot_be_served_names_the_rule(
    client: TestClient, content: bytes, status: int, message: str
) -> None:
    answer = ready(client).post("/encode", content=content)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_a_body_without_a_stated_length_is_bounded_too(client: TestClient) -> None:
    chunks = (b"x" * 400 for _ in range(3))
    answer = ready(client).post("/encode", content=chunks)
    assert answer.status_code == 413


def test_an_internal_error_shows_an_id_and_no_secret(client: TestClient) -> None:
    six = png(np.zeros((6, 6, 3), np.uint8))
    answer = ready(client).post("/encode", content=six, headers={"x-request-id": "abc"})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error abc"
    assert answer.headers["x-request-id"] == "abc"
    assert "secret" not in answer.text
    assert "ZeroDivision" not in answer.text


def test_a_full_queue_answers_at_once(client: TestClient, service: StubService) -> None:
    ready(client)
    service.may_serve.clear()
    device = client.app.state.device  # type: ignore[attr-defined]
    from ostinato.serve.service import Request

    device.submit(Request({"image": PIXELS}))
    while not service.batches:
        time.sleep(0.002)
    device.submit(Request({"image": PIXELS}))
    answer = client.post("/encode", content=png())
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_the_key_guards_everything_but_health(service: StubService) -> None:
    settings = ServerSettings(api_key="k1")
    with TestClient(build_app(service, settings)) as client:
        ready(client)
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 401
        wrong = client.post("/encode", content=png(), headers={"Authorization": "Bearer k2"})
        assert wrong.status_code == 401
        right = client.post("/encode", content=png(), headers={"Authorization": "Bearer k1"})
        assert right.status_code == 200
