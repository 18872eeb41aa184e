"""The chat server under load with a stub behind it: right answers, no error but the deserved."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ostinato.serve.openai.settings import ChatSettings
from tests.serve.openai.chatting import CHAT, chat, events_of, server, text_of, wait_for
from tests.serve.openai.stub import StubChat
from tests.serve.requests import part

NUM_CLIENTS = 32
LIMIT = 24  # fewer than there are clients, so that some are turned away


def body_of(draw: random.Random, number: int) -> tuple[str, Any]:
    kind = draw.choice(["whole", "stream", "image", "leave", "broken", "wrong", "long"])
    text = f"client {number} " + "word " * draw.randint(0, 60)
    content: Any = text.strip()
    if kind in ("image", "broken"):
        image = part(b"broken" if kind == "broken" else b"picture")
        content = [image, {"type": "text", "text": content}]
    if kind == "long":
        content = "word " * 2500
    fields = {"logit_bias": {"1": 1}} if kind == "wrong" else {}
    return kind, chat(content, stream=kind in ("stream", "leave"), **fields)


def visit(port: int, number: int, until_s: float, outcome: Counter[str], wrong: list[str]) -> None:
    draw = random.Random(number)
    while time.monotonic() < until_s:
        kind, body = body_of(draw, number)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("POST", CHAT, json.dumps(body))
            if kind == "leave":
                time.sleep(draw.random() * 0.03)
                outcome["left"] += 1
                continue
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status == 503:
            outcome["busy"] += 1
            time.sleep(0.02)
        elif kind in ("broken", "wrong", "long"):
            outcome["refused"] += 1
            if response.status != 400:
                wrong.append(f"{kind}: {response.status} {text}")
        elif response.status != 200:
            wrong.append(f"{kind}: {response.status} {text}")
        else:
            outcome["served"] += 1
            said = (
                text_of(events_of(text))
                if body["stream"]
                else json.loads(text)["choices"][0]["message"]["content"]
            )
            if not said.startswith(f"Turn 1: client {number}") or not said.endswith("."):
                wrong.append(f"{kind}: {said!r}")


def probe(port: int, until_s: float, health_ms: list[float]) -> None:
    while time.monotonic() < until_s:
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        health_ms.append((time.perf_counter() - began_s) * 1e3)
        time.sleep(0.01)


@pytest.mark.load
def test_clients_that_leave_and_broken_requests_harm_nobody() -> None:
    service = StubChat(token_s=0.001)
    outcome: Counter[str] = Counter()
    wrong: list[str] = []
    health_ms: list[float] = []
    with server(service, ChatSettings(), max_queued=LIMIT) as (port, running):
        until_s = time.monotonic() + 10
        threads = [
            threading.Thread(target=visit, args=(port, number, until_s, outcome, wrong))
            for number in range(NUM_CLIENTS)
        ]
        threads.append(threading.Thread(target=probe, args=(port, until_s, health_ms)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        wait_for(lambda: not service.running)
        front = running.config.app.state.device  # type: ignore[union-attr]
        wait_for(lambda: front.num_open == 0)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
    print(dict(outcome), f"health P99 {np.percentile(health_ms, 99):.0f} ms")
    assert wrong == []
    assert min(outcome[key] for key in ("served", "refused", "left", "busy")) > 20
    assert np.percentile(health_ms, 99) < 500
    assert 'ostinato_refusals_total{status="500"}' not in page
    assert 'vllm:num_requests_running{model_name="stub-chat"} 0.0' in page
