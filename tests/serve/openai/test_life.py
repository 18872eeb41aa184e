"""Warm-up, back-pressure, clients that leave, failures and the end."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.errors import Overloaded
from ostinato.serve.device_thread import Phase
from ostinato.serve.openai.app import build_chat_app
from ostinato.serve.openai.settings import ChatSettings
from ostinato.serve.settings import ServerSettings
from tests.serve.openai.chatting import (
    CHAT,
    chat,
    events_of,
    refused,
    server,
    text_of,
    wait_for,
)
from tests.serve.openai.stub import StubChat
from tests.serve.requests import metric, part, ready


def post(port: int, body: Any, path: str = CHAT) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def read(connection: http.client.HTTPConnection) -> tuple[int, str]:
    """Status and text of the reply."""
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_ready_only_after_warm_up() -> None:
    service = StubChat()
    service.may_warm_up.clear()
    with TestClient(build_chat_app(service, ServerSettings())) as client:
        statuses = [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")]
        assert statuses == [200, 200, 503]
        answer = client.post(CHAT, json=chat())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["message"] == "the model is starting"
        service.may_warm_up.set()
        assert ready(client).get("/readyz").status_code == 200
    assert service.is_closed


def test_a_failed_warm_up_and_a_dead_engine_make_health_fail() -> None:
    service = StubChat()
    service.warm_up_error = RuntimeError("no weights")
    with TestClient(build_chat_app(service, ServerSettings())) as client:
        assert ready(client).get("/health").status_code == 503
        assert str(client.app.state.device.error) == "no weights"  # type: ignore[attr-defined]
    service = StubChat()
    with TestClient(build_chat_app(service, ServerSettings())) as client:
        assert ready(client).get("/health").status_code == 200
        service.death = RuntimeError("out of memory")
        assert client.get("/health").status_code == 503
        assert client.get("/readyz").status_code == 503
        assert refused(client, chat(), status=503)["message"] == "the model is failed"


def test_the_key_guards_everything_but_health() -> None:
    with TestClient(build_chat_app(StubChat(), ServerSettings(api_key="k1"))) as client:
        ready(client)
        assert refused(client, chat(), status=401)["code"] == "invalid_api_key"
        headers = {"Authorization": "Bearer k1"}
        assert client.post(CHAT, json=chat(), headers=headers).status_code == 200


def test_a_full_server_answers_at_once_and_recovers() -> None:
    service = StubChat()
    service.may_draw.clear()
    with server(service, max_queued=2) as (port, _):
        held = [post(port, chat()) for _ in range(2)]
        wait_for(lambda: len(service.running) == 2)
        refusing = post(port, chat())
        response = refusing.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        error = json.loads(response.read())["error"]
        refusing.close()
        assert error["message"] == "2 answers are under way, 2 may be"
        assert error["code"] == "overloaded"
        service.may_draw.set()
        assert [read(connection)[0] for connection in held] == [200, 200]
        status, body = read(post(port, chat(n=3)))  # as many places as answers: never served
        assert status == 400 and "n: [request] is 3; expected at most 2" in body
        assert read(post(port, chat(n=2)))[0] == 200


def test_the_services_own_refusal_keeps_its_time() -> None:
    with TestClient(build_chat_app(StubChat(), ServerSettings())) as client:
        answer = ready(client).post(CHAT, json=chat([part(b"full")], stream=True))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("stage", ["reading", "waiting", "drawing"])
def test_a_client_that_leaves_frees_its_place(stage: str, is_stream: bool) -> None:
    service = StubChat(token_s=0.02)
    with server(service, max_queued=1) as (port, _):
        if stage == "reading":
            service.may_submit.clear()
        if stage == "waiting":
            service.may_draw.clear()
        connection = post(port, chat("word " * 500, stream=is_stream))
        if stage == "reading":
            wait_for(lambda: service.submit_threads)
        elif stage == "waiting":
            wait_for(lambda: service.running)
        else:
            wait_for(lambda: service.running and service.running[0].num_drawn > 2)
        connection.close()
        if stage == "reading":
            time.sleep(0.1)
            service.may_submit.set()
        wait_for(lambda: len(service.finished) == 1)
        assert service.finished[0].is_cancelled
        assert service.finished[0].num_drawn < 100
        service.may_draw.set()
        wait_for(lambda: read(post(port, chat("short")))[0] == 200)


def test_what_fails_before_the_first_token_is_a_real_error() -> None:
    with TestClient(build_chat_app(StubChat(), ServerSettings())) as client:
        answer = ready(client).post(
            CHAT, json=chat([part(b"crash")], stream=True), headers={"x-request-id": "abc"}
        )
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "internal error abc"
        error = refused(client, chat([part(b"broken")], stream=True))
        assert error["code"] == "broken-image"


def test_what_fails_later_is_the_last_event() -> None:
    service = StubChat()
    with TestClient(build_chat_app(service, ServerSettings())) as client:
        ready(client)
        service.draw_error = RuntimeError("secret")
        answer = client.post(CHAT, json=chat(stream=True), headers={"x-request-id": "abc"})
        *chunks, last = events_of(answer.text)
        assert last["error"]["message"] == "internal error abc"
        assert text_of(chunks) == "Turn"
        assert refused(client, chat(), status=500)["code"] == "internal_error"
        name = 'vllm:request_success_total{finished_reason="error",model_name="stub-chat"}'
        assert metric(client, name) == 2
        service.draw_error = None
        assert client.post(CHAT, json=chat()).status_code == 200


def test_many_clients_at_once_get_their_own_answers() -> None:
    service = StubChat(token_s=0.001)
    with server(service) as (port, _):
        found: dict[int, str] = {}

        def ask(number: int) -> None:
            body = chat(f"client {number}", stream=number % 2 == 0)
            _, text = read(post(port, body))
            found[number] = (
                text_of(events_of(text))
                if number % 2 == 0
                else json.loads(text)["choices"][0]["message"]["content"]
            )

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert found == {n: f"Turn 1: client {n} 0 seen of 0." for n in range(16)}


def test_a_stopping_server_finishes_what_runs_and_takes_nothing_new() -> None:
    service = StubChat(token_s=0.01)
    with server(service) as (port, running):
        connection = post(port, chat("word " * 100, stream=True))
        wait_for(lambda: service.running and service.running[0].num_drawn > 2)
        running.should_exit = True
        _, text = read(connection)
        assert text_of(events_of(text)).endswith("0 seen of 0.")
        wait_for(lambda: service.is_closed)
        with pytest.raises(ConnectionError):
            post(port, chat())
    assert not service.finished[0].is_cancelled


def test_the_front_waits_for_answers_and_then_closes() -> None:
    service = StubChat()
    app = build_chat_app(service, ServerSettings(), ChatSettings(drain_s=5))
    front = app.state.device
    front.start()
    assert front.wait_until_settled(5) is Phase.READY
    place = front.take(10)
    stopper = threading.Thread(target=front.stop)
    stopper.start()
    wait_for(lambda: front.phase is Phase.STOPPED)
    time.sleep(0.1)
    assert not service.is_closed
    place.release()
    place.release()
    stopper.join(5)
    assert service.is_closed
    assert front.num_open == 0


def test_a_place_that_was_given_back_cannot_grow() -> None:
    """A worker may come to it after its client has left."""
    service = StubChat()
    front = build_chat_app(service, ServerSettings(max_queued=4)).state.device
    front.start()
    front.wait_until_settled(5)
    place = front.take(10)
    place.widen(3)
    assert front.num_open == 3
    place.release()
    with pytest.raises(Overloaded, match="the client has left"):
        place.widen(4)
    assert front.num_open == 0
    front.stop()


def test_bodies_that_wait_are_bounded_together() -> None:
    front = build_chat_app(StubChat(), ServerSettings(max_queued_bytes=100)).state.device
    front.start()
    front.wait_until_settled(5)
    place = front.take(500)  # alone it may be larger
    with pytest.raises(Overloaded, match="requests of 500 bytes are under way, 100 may be"):
        front.take(1)
    place.release()
    front.take(60).release()
    front.stop()
