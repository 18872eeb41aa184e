"""Websockets as robots use them, against a real server on the loopback."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ostinato.serve.openpi.actions import ActionBounds
from ostinato.serve.openpi.codec import packb, unpackb
from ostinato.serve.openpi.intake import IntakeSettings
from ostinato.serve.openpi.settings import RobotSettings
from tests.serve.openpi.observations import (
    as_read,
    droid,
    encoded,
    picture,
    plain,
    server,
    wait_for,
)
from tests.serve.openpi.stub import StubPolicy, actions_of
from tests.serve.openpi.test_intake import MALFORMED

WANTED = actions_of(as_read(), {})


@pytest.fixture
def service() -> StubPolicy:
    return StubPolicy()


@pytest.fixture
def port(service: StubPolicy) -> Iterator[int]:
    with server(service) as port:
        yield port


def dial(port: int, path: str = "/", **fields: Any) -> ClientConnection:
    """As openpi's client does; the metadata is still to be read."""
    uri = f"ws://127.0.0.1:{port}{path}"
    return connect(uri, compression=None, max_size=None, **fields)


def ask(robot: ClientConnection, observation: dict[Any, Any]) -> Any:
    robot.send(packb(observation))
    reply = robot.recv(timeout=10)
    return reply if isinstance(reply, str) else unpackb(reply)


def get(port: int, path: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/openpi/policy", "/any/other"])
def test_openpis_dialogue(port: int, path: str) -> None:
    with dial(port, path) as robot:
        first = robot.recv(timeout=10)
        assert isinstance(first, bytes)
        metadata = unpackb(first)
        assert metadata["input"]["camera_keys"] == ["wrist", "left", "right"]
        assert metadata["protocol"]["version"] == 1
        assert metadata["n_external_cameras"] == 2
        for number, observation in enumerate((droid(), plain(ostinato={"request_id": "r1"}))):
            reply = ask(robot, observation)
            assert reply["actions"].tobytes() == WANTED.tobytes()
            assert reply["actions_model"].tobytes() == (WANTED * 2).tobytes()
            assert reply["server_timing"]["infer_ms"] == 5.0
            assert ("prev_total_ms" in reply["server_timing"]) is (number == 1)
        assert reply["ostinato"] == {"request_id": "r1", "route": "exact"}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for entry in value.values():
            yield from leaves(entry)
    else:
        yield value


def test_every_array_of_a_reply_has_the_chunk_as_its_first_axis(port: int) -> None:
    """Openpi's chunk broker takes step i of each; all others pass through it as they are."""
    with dial(port) as robot:
        unpackb(robot.recv())
        reply = ask(robot, droid(ostinato={"session_id": "s"}, unknown=1))
    arrays = [value for value in leaves(reply) if isinstance(value, np.ndarray)]
    assert [array.shape[0] for array in arrays] == [4, 4]
    others = {type(value) for value in leaves(reply)} - {np.ndarray}
    assert others <= {float, int, str, bool, list}
    assert reply["ostinato"]["ignored"] == ["unknown"]


def test_an_error_is_a_text_frame_and_then_close_code_1011(port: int) -> None:
    with dial(port) as robot:
        robot.recv()
        reply = ask(robot, droid(ostinato={"request_id": "abc"}, prompt=3))
        assert reply == "[prompt] the prompt is int 3; expected text (error id abc)"
        with pytest.raises(ConnectionClosedError) as closed:
            robot.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
        1011,
        "Internal server error. Message and error id in previous frame.",
    )


BAD_FRAMES: list[tuple[str, bytes | str, str]] = [
    ("text", "hello", "a text frame; expected a binary one"),
    ("pickle", b"\x80\x04\x95.", "\\[msgpack\\]"),
    ("list", packb([1]), "the message is list of 1; expected a map"),
    ("cut off", packb(droid())[:-1], "cut off"),
    (
        "objects",
        packb({"__ndarray__": True, "data": b"", "dtype": "|O", "shape": [0]}),
        "expected numbers",
    ),
]
BAD_FRAMES += [(name, packb(message), reason) for name, message, reason in MALFORMED]


def test_thirty_malformed_observations_and_a_good_one_after_each(port: int) -> None:
    assert len(BAD_FRAMES) >= 20
    for name, frame, reason in BAD_FRAMES:
        with dial(port) as robot:
            robot.recv()
            robot.send(frame)
            error = robot.recv(timeout=10)
            assert isinstance(error, str), name
            assert "Traceback" not in error
            with pytest.raises(AssertionError, match=reason):
                raise AssertionError(error)
            with pytest.raises(ConnectionClosedError):
                robot.recv(timeout=10)
        with dial(port) as robot:
            robot.recv()
            assert ask(robot, droid())["actions"].tobytes() == WANTED.tobytes()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("fail", "internal error abc (error id abc)"), ("nan", "[unsafe-actions] 1 of 32 values")],
)
def test_what_the_policy_gets_wrong_is_an_error_without_a_secret(
    port: int, prompt: str, message: str
) -> None:
    with dial(port) as robot:
        robot.recv()
        reply = ask(robot, droid(ostinato={"request_id": "abc"}, prompt=prompt))
        assert reply.startswith(message) and "secret" not in reply


def test_roboarena(port: int, service: StubPolicy) -> None:
    with dial(port) as robot:
        robot.recv()
        actions = ask(robot, droid(endpoint="infer", session_id="ep1"))
        assert isinstance(actions, np.ndarray) and actions.tobytes() == WANTED.tobytes()
        assert ask(robot, {"endpoint": "reset", "session_id": "ep1"}) == "reset successful"
        assert ask(robot, droid(session_id="ep1")).tobytes() == WANTED.tobytes()
    assert service.resets == ["ep1"]


def test_realtime_answers_in_envelopes_and_stays_open_after_errors(port: int) -> None:
    with dial(port, "/v1/actions/realtime") as robot:
        robot.recv()
        body = {
            "input": {"task": "go", "observation": plain(prompt=None)},
            "parameters": {"seed": 2},
        }
        reply = ask(robot, {**body, "ostinato": {"request_id": "a"}})
        assert (reply["object"], reply["id"]) == ("action.generation", "act-a")
        values = reply["data"][0]["action"]["values"]
        seen = {**as_read(), "prompt": "go"}
        assert values.tobytes() == actions_of(seen, {"seed": 2}).tobytes()
        error = ask(robot, {"input": 3, "ostinato": {"request_id": "b"}})
        assert (error["object"], error["error"]["code"]) == ("error", "input")
        error = ask(robot, {"state": [1.0], "ostinato": {"request_id": "c"}})
        assert (error["request_id"], error["error"]["code"]) == ("c", "missing-cameras")
        assert ask(robot, {**body, "runtime": {"response_format": "raw"}})["actions"].shape == (
            4,
            8,
        )


def test_a_deadline_is_answered_when_it_is_over_and_the_late_answer_is_thrown_away(
    port: int, service: StubPolicy
) -> None:
    service.may_serve.clear()
    with dial(port) as robot:
        robot.recv()
        began_s = time.monotonic()
        late = ask(robot, droid(prompt="late", ostinato={"deadline_ms": 60, "request_id": "a"}))
        took_s = time.monotonic() - began_s
        assert late == (
            "[deadline-missed] not answered within 60 ms: the device was busy (error id a)"
        )
        assert 0.06 <= took_s < 0.5
        service.may_serve.set()
        reply = ask(robot, droid(ostinato={"deadline_ms": 5000, "request_id": "b"}))
        assert reply["ostinato"]["request_id"] == "b"
        assert reply["actions"].tobytes() == WANTED.tobytes()
    assert [seen["prompt"] for seen in service.seen] == ["late", "pick up the cup"]


def test_late_work_that_waits_never_reaches_the_device(port: int, service: StubPolicy) -> None:
    service.may_serve.clear()
    with dial(port) as busy, dial(port) as late:
        busy.recv(), late.recv()
        busy.send(packb(droid(prompt="busy")))
        wait_for(lambda: service.seen)
        assert "deadline-missed" in ask(late, droid(prompt="late", ostinato={"deadline_ms": 30}))
        service.may_serve.set()
        assert unpackb(busy.recv(timeout=10))["actions"].shape == (4, 8)
        ask(late, droid(prompt="next"))
    assert [seen["prompt"] for seen in service.seen] == ["busy", "next"]


def test_newest_wins_within_a_session_and_nowhere_else(port: int, service: StubPolicy) -> None:
    service.may_serve.clear()
    with dial(port) as busy, dial(port) as one, dial(port) as two, dial(port) as free:
        for robot in (busy, one, two, free):
            robot.recv()
        busy.send(packb(droid(prompt="busy")))
        wait_for(lambda: service.seen)
        session = {"ostinato": {"session_id": "s"}}
        one.send(packb(droid(prompt="old", **session)))
        free.send(packb(droid(prompt="first")))
        free.send(packb(droid(prompt="second")))
        device_waits(port, 3)
        two.send(packb(droid(prompt="new", **session)))
        assert "[superseded] the session has sent a newer" in str(one.recv(timeout=10))
        service.may_serve.set()
        for robot in (busy, two, free, free):
            assert isinstance(robot.recv(timeout=10), bytes)
        # a superseded request ends nothing: the connection is as good as before
        assert ask(one, droid(**session))["actions"].tobytes() == WANTED.tobytes()
    assert [s["prompt"] for s in service.seen[1:4]] in (
        ["new", "first", "second"],
        ["first", "new", "second"],
    )


def device_waits(port: int, count: int) -> None:
    wait_for(lambda: f"ostinato_queued {count}.0" in get(port, "/metrics")[1])


def test_a_client_that_leaves_frees_its_place_at_once(port: int, service: StubPolicy) -> None:
    service.may_serve.clear()
    with dial(port) as busy, dial(port) as polite, dial(port) as rude:
        busy.recv()
        busy.send(packb(droid(prompt="busy")))
        wait_for(lambda: service.seen)
        for robot in (polite, rude):
            robot.recv()
            robot.send(packb(droid(prompt="gone")))
        polite.send(packb(droid(prompt="gone")))
        device_waits(port, 3)
        polite.close()
        device_waits(port, 1)
        rude.socket.shutdown(socket.SHUT_RDWR)  # as a cable that is pulled with a last word
        device_waits(port, 0)
        service.may_serve.set()
        assert isinstance(busy.recv(timeout=10), bytes)
    assert [seen["prompt"] for seen in service.seen] == ["busy"]
    wait_for(lambda: "ostinato_robot_connections 0.0" in get(port, "/metrics")[1])


def test_too_many_requests_in_flight_end_that_connection(service: StubPolicy) -> None:
    service.may_serve.clear()
    with server(service, RobotSettings(max_in_flight=2)) as port, dial(port) as robot:
        robot.recv()
        for _ in range(3):
            robot.send(packb(droid()))
        time.sleep(0.4)  # until all three were read
        service.may_serve.set()
        replies = [robot.recv(timeout=10) for _ in range(3)]
        assert [type(reply) for reply in replies] == [bytes, bytes, str]
        assert "2 requests of this connection wait" in str(replies[2])


def test_a_clamp_is_announced_in_metadata_reply_and_metrics(service: StubPolicy) -> None:
    bounds = ActionBounds((-99.0,), (float(WANTED[0, 0]),), is_clamped=True)
    with server(service, RobotSettings(bounds=bounds)) as port, dial(port) as robot:
        announced = unpackb(robot.recv())["output"]["bounds"]
        assert (announced["clamp"], announced["low"]) == (True, [-99.0])
        reply = ask(robot, droid())
        num_above = int((WANTED - WANTED[0, 0] > 0).sum())
        assert reply["ostinato"]["num_clamped"] == num_above > 0
        assert reply["actions"].tobytes() == np.minimum(WANTED, WANTED[0, 0]).tobytes()
        wait_for(lambda: f"clamped_values_total {num_above}.0" in get(port, "/metrics")[1])


def test_rename_and_resize_as_the_server_was_started(service: StubPolicy) -> None:
    robots = RobotSettings(IntakeSettings({"top": "wrist"}, is_resized=True))
    with server(service, robots) as port, dial(port) as robot:
        told = unpackb(robot.recv())["input"]
        assert (told["rename"], told["resizes_cameras"]) == ({"top": "wrist"}, True)
        observation = droid(top=picture(0, (24, 40)))
        del observation["observation/wrist_image_left"]
        assert ask(robot, observation)["actions"].shape == (4, 8)
    assert service.seen[0]["images"]["wrist"].shape == (12, 20, 3)


@pytest.mark.parametrize("scheme", ["Api-Key", "Bearer"])
def test_the_key_guards_websockets(service: StubPolicy, scheme: str) -> None:
    with server(service, api_key="k1") as port:
        with pytest.raises(InvalidStatus) as refused:
            dial(port)
        assert refused.value.response.status_code == 401
        with dial(port, additional_headers={"Authorization": f"{scheme} k1"}) as robot:
            robot.recv()
            assert ask(robot, droid())["actions"].shape == (4, 8)
        assert get(port, "/healthz")[0] == 200
        assert get(port, "/v1/actions/metadata")[0] == 401


def test_health_as_openpi_has_it(port: int) -> None:
    assert get(port, "/healthz")[:2] == (200, "OK\n")
    status, text, headers = get(port, "/")
    assert (status, headers["Upgrade"]) == (426, "websocket")
    assert text.startswith("Failed to open a WebSocket connection: missing Upgrade header.")
    with pytest.raises(InvalidStatus) as refused:
        dial(port, "/v1/unknown")
    assert refused.value.response.status_code == 403


def test_no_compression_and_large_messages(service: StubPolicy) -> None:
    with server(service, max_body_bytes=3 << 20) as port:
        uri = f"ws://127.0.0.1:{port}/"
        with connect(uri, compression="deflate", max_size=None) as robot:
            assert robot.response is not None
            assert "Sec-WebSocket-Extensions" not in robot.response.headers
            robot.recv()
            assert ask(robot, droid(extra=b"x" * (2 << 20)))["actions"].shape == (4, 8)
            with pytest.raises(ConnectionClosedError) as closed:
                robot.send(packb({"x": b"x" * (3 << 20)}))  # refused at its header
                robot.recv(timeout=10)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_raw_cameras_are_read_at_once_and_files_in_a_worker(
    port: int, service: StubPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    prepare = service.prepare

    def spy(requests: Any) -> Any:
        threads.append(threading.current_thread().name)
        return prepare(requests)

    monkeypatch.setattr(service, "prepare", spy)
    png = encoded(picture(0), "PNG")
    with dial(port) as robot:
        robot.recv()
        for observation in (droid(), droid(**{"observation/wrist_image_left": png})):
            assert ask(robot, observation)["actions"].tobytes() == WANTED.tobytes()
    assert not threads[0].startswith("ostinato-request")
    assert threads[1].startswith("ostinato-request")


def test_pings_and_health_are_answered_while_the_device_works_and_warms_up(
    service: StubPolicy,
) -> None:
    """A first call far longer than the client's patience for a pong does not lose the client."""
    service.may_warm_up.clear()
    service.delays_s = [1.2, 0.0]
    health: list[float] = []
    is_over = threading.Event()

    def probe(port: int) -> None:
        while not is_over.is_set():
            began_s = time.monotonic()
            assert get(port, "/healthz")[:2] == (200, "OK\n")
            health.append(time.monotonic() - began_s)
            time.sleep(0.02)

    with server(service, ping_interval_s=0.1, ping_timeout_s=0.2) as port:
        prober = threading.Thread(target=probe, args=(port,))
        prober.start()
        with dial(port, ping_interval=0.1, ping_timeout=0.2) as robot:
            assert unpackb(robot.recv())["model"] == "stub"
            assert get(port, "/readyz")[0] == 503
            robot.send(packb(droid()))
            time.sleep(0.5)  # its first observation waits for the warm-up
            service.may_warm_up.set()
            reply = unpackb(robot.recv(timeout=10))
            assert reply["actions"].tobytes() == WANTED.tobytes()
            assert reply["server_timing"]["queue_ms"] > 300
            assert get(port, "/readyz")[0] == 200
            assert ask(robot, droid())["actions"].shape == (4, 8)
        is_over.set()
        prober.join()
    assert len(health) > 20 and max(health) < 0.5


def test_a_client_that_answers_no_ping_is_dropped(service: StubPolicy) -> None:
    with server(service, ping_interval_s=0.1, ping_timeout_s=0.2) as port:
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(
                b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            wait_for(lambda: "ostinato_robot_connections 1.0" in get(port, "/metrics")[1])
            wait_for(lambda: "ostinato_robot_connections 0.0" in get(port, "/metrics")[1])


def test_the_device_is_kept_warm_in_pauses(service: StubPolicy) -> None:
    with server(service, RobotSettings(keep_warm_s=0.05)) as port, dial(port) as robot:
        robot.recv()
        ask(robot, droid())
        wait_for(lambda: service.num_warmings >= 2)
        assert service.threads == {"ostinato-device"}
        page = get(port, "/metrics")[1]
        assert "ostinato_keep_warm_calls_total" in page
    silent = StubPolicy()
    with server(silent, RobotSettings(keep_warm_s=0)) as port, dial(port) as robot:
        robot.recv()
        time.sleep(0.2)
    assert silent.num_warmings == 0


def test_errors_and_stages_are_counted(port: int) -> None:
    with dial(port) as robot:
        robot.recv()
        ask(robot, droid())
        ask(robot, droid(prompt=3))
    page = get(port, "/metrics")[1]
    assert 'ostinato_robot_errors_total{code="prompt"} 1.0' in page
    assert 'ostinato_replies_total{route="exact"} 1.0' in page
    for stage in ("decode", "prepare", "queue", "infer", "denoise", "total"):
        assert f'ostinato_stage_seconds_count{{stage="{stage}"}} 1.0' in page


def test_models_and_metadata_over_http(port: int) -> None:
    status, text, _ = get(port, "/v1/actions/metadata")
    metadata = json.loads(text)
    assert (status, metadata["output"]["bounds"]) == (200, None)
    assert metadata["protocol"]["dialects"] == ["openpi", "roboarena"]
    assert json.loads(get(port, "/v1/models")[1])["data"][0]["task"] == "actions"
