"""``POST /v1/actions/generations`` in both encodings and both forms, and its errors by status."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ostinato.serve.openpi.codec import packb, unpackb
from tests.serve.openpi.observations import as_read, encoded, plain, server, wait_for
from tests.serve.openpi.stub import StubPolicy, actions_of
from tests.serve.openpi.test_sockets import device_waits

MSGPACK = {"Content-Type": "application/msgpack"}
JSON = {"Content-Type": "application/json"}
WANTED = actions_of(as_read(), {})


@pytest.fixture
def service() -> StubPolicy:
    return StubPolicy()


@pytest.fixture
def port(service: StubPolicy) -> Iterator[int]:
    with server(service) as port:
        yield port


def post(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/v1/actions/generations", body, headers)
        response = connection.getresponse()
        data = response.read()
        is_msgpack = response.headers["Content-Type"] == "application/msgpack"
        return response.status, unpackb(data) if is_msgpack else json.loads(data), response.headers
    finally:
        connection.close()


def in_json(**fields: Any) -> bytes:
    """The observation with PNG cameras."""
    observation = plain()
    images = {
        name: {"b64_json": base64.b64encode(encoded(image, "PNG")).decode()}
        for name, image in observation["images"].items()
    }
    body = {"images": images, "state": observation["state"].tolist()}
    task = {"task": observation["prompt"], "observation": body}
    return json.dumps({"model": "stub", "input": task, **fields}).encode()


def test_json_in_an_envelope(port: int) -> None:
    status, reply, headers = post(port, in_json(), {**JSON, "X-Request-Id": "r9"})
    assert (status, headers["x-request-id"], reply["id"]) == (200, "r9", "act-r9")
    (datum,) = reply["data"]
    action = datum["action"]
    assert (action["type"], action["dtype"], action["shape"]) == ("continuous", "float32", [4, 8])
    assert np.array(action["values"], np.float32).tobytes() == WANTED.tobytes()
    assert np.array_equal(datum["action_model"]["values"], WANTED * 2)
    assert reply["usage"]["action_horizon"] == 4
    assert reply["cache"] == {"enabled": True, "hit": False, "scope": "caption", "mode": "exact"}
    assert {"denoise_ms", "decode_ms", "queue_ms", "infer_ms"} <= set(reply["timings"])


def test_raw_without_times(port: int) -> None:
    runtime = {"response_format": "raw", "return_timing": False}
    _, reply, _ = post(port, in_json(runtime=runtime), JSON)
    assert np.array(reply["actions"], np.float32).tobytes() == WANTED.tobytes()
    assert "timings" not in reply and "server_timing" not in reply


def test_msgpack_both_ways(port: int) -> None:
    status, reply, _ = post(port, packb(plain()), MSGPACK)
    values = reply["data"][0]["action"]["values"]
    assert status == 200 and values.tobytes() == WANTED.tobytes()


def test_msgpack_back_for_json(port: int) -> None:
    headers = {**JSON, "Accept": "application/msgpack"}
    _, reply, _ = post(port, in_json(), headers)
    assert reply["data"][0]["action"]["values"].tobytes() == WANTED.tobytes()


def test_lists_in_msgpack_where_they_are_asked_for(port: int) -> None:
    body = packb({**plain(), "runtime": {"output_format": "list"}})
    _, reply, _ = post(port, body, MSGPACK)
    assert reply["data"][0]["action"]["values"] == WANTED.tolist()


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "reason"),
    [
        (b"{", JSON, 400, "json", "Expecting"),
        (packb({"state": [1.0]}), MSGPACK, 400, "missing-cameras", "expected [left, right, wrist]"),
        (packb(plain(seed=-1)), MSGPACK, 400, "option", "seed is below 0"),
        (packb(plain(prompt="nan")), MSGPACK, 500, "unsafe-actions", "expected finite numbers"),
        (packb(plain(prompt="fail")), MSGPACK, 500, "internal_error", "internal error r1"),
        (b"\x80\x04.", MSGPACK, 400, "msgpack", "bytes follow the message"),
    ],
)
def test_errors(
    port: int, body: bytes, headers: dict[str, str], status: int, code: str, reason: str
) -> None:
    found, reply, _ = post(port, body, {**headers, "X-Request-Id": "r1"})
    assert (found, reply["error"]["code"]) == (status, code)
    assert reason in reply["error"]["message"] and "secret" not in reply["error"]["message"]


def test_a_missed_deadline_is_504(port: int, service: StubPolicy) -> None:
    service.may_serve.clear()
    body = packb({**plain(), "ostinato": {"deadline_ms": 40}})
    status, reply, _ = post(port, body, MSGPACK)
    assert (status, reply["error"]["code"]) == (504, "deadline-missed")


def test_a_client_that_hangs_up_frees_its_place(port: int, service: StubPolicy) -> None:
    service.may_serve.clear()
    connections = []
    for _ in range(2):  # one on the device, one behind it
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/v1/actions/generations", packb(plain()), MSGPACK)
        connections.append(connection)
        wait_for(lambda: service.seen)
    device_waits(port, 1)
    connections[1].close()
    device_waits(port, 0)
    service.may_serve.set()
    assert connections[0].getresponse().status == 200
    connections[0].close()
    time.sleep(0.05)
    assert len(service.seen) == 1


def test_a_large_body_is_refused(service: StubPolicy) -> None:
    with server(service, max_body_bytes=5 << 20) as port:
        observation = {**plain(), "note": b"x" * (4 << 20)}
        assert post(port, packb(observation), MSGPACK)[0] == 200
        observation["note"] *= 2
        status, reply, _ = post(port, packb(observation), MSGPACK)
        assert (status, reply["error"]["code"]) == (413, "request-too-large")
