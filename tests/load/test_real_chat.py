"""A tiny model, its real engine and a real server under load, with too few pages for its clients:
only deserved errors, everybody's own answer, nothing left behind.

OSTINATO_LOAD_SECONDS: how long (10).
"""

from __future__ import annotations

import base64
import ctypes
import gc
import http.client
import io
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ostinato
from ostinato.cli.chat_wiring import ChatAdapter
from ostinato.lm.contract import Media
from ostinato.lm.scheduler import Sequence
from ostinato.serve.openai.settings import ChatSettings
from ostinato.vlm.chat import Chat
from tests.serve.openai.chatting import CHAT, events_of, server, text_of, wait_for

MODEL = "tiny-qwen3-vl"
SECONDS = float(os.environ.get("OSTINATO_LOAD_SECONDS", "10"))
NUM_CLIENTS, LIMIT = 10, 8
LENGTH, PAGE = 320, 16
SIZES: dict[str, Any] = {
    "max_length": LENGTH,
    "page_size": PAGE,
    "max_batch": 4,
    "decode_rungs": (1, 4),
    "prefill_rungs": (32, 64),
    "top_patches": 64,
}
FEW_PAGES = 24
"""One request may need 20, so four that run do not fit."""
GROWTH_MIB = 24


def picture(number: int) -> str:
    draw = np.random.default_rng(number)
    height, width = (int(n) for n in draw.integers(20, 100, 2))
    held = io.BytesIO()
    pixels = draw.integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(held, "png")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


def wishes(number: int) -> dict[str, Any]:
    """Greedy and seeded, with and without penalties, some to be stopped by a string."""
    draw = random.Random(number)
    found: dict[str, Any] = {"max_tokens": draw.randint(1, 40), "seed": number}
    found["temperature"] = draw.choice([0, 0, 0.7])
    found |= draw.choice([{}, {"top_p": 0.9, "top_k": 20}])
    found |= draw.choice([{}, {"repetition_penalty": 1.2, "presence_penalty": 0.3}])
    return found | draw.choice([{}, {"stop": ["e"]}, {"ignore_eos": True}])


def messages(number: int) -> list[dict[str, Any]]:
    """Each shows 0 to 2 images behind words that some share, and some go on for a second turn."""
    draw = random.Random(number)
    words = "shared beginning " * (number % 3) + f"request {number} "
    content: list[dict[str, Any]] = [{"type": "text", "text": words}]
    for i in range(draw.choice([0, 1, 1, 2])):
        url = {"url": picture(number * 10 + i)}
        content.insert(draw.randint(0, 1), {"type": "image_url", "image_url": url})
    turns = [{"role": "user", "content": content}]
    if draw.random() < 0.3:
        turns += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "sure?"}]
    return turns


@dataclass
class Known:
    """A request and what it is answered when nobody else is there."""

    body: dict[str, Any]
    text: str
    num_tokens: int


@pytest.fixture(scope="module")
def known() -> list[Known]:
    found = []
    off = ostinato.GraphConfig(mode="off")
    with ostinato.load_chat(MODEL, device="cpu", graph=off, num_pages=64, **SIZES) as chat:
        for number in range(24):
            turns, how = messages(number), wishes(number)
            alone = chat.generate(turns, **how)
            found.append(Known({"messages": turns, **how}, alone.text, alone.completion_tokens))
    assert len({one.text for one in found}) > 15
    return found


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with ostinato.load_chat(MODEL, device="cpu", num_pages=FEW_PAGES, **SIZES) as made:
        yield made


class Client:
    """Asks again and again; counts what it got, and notes what it should not have got."""

    def __init__(self, port: int, number: int, known: list[Known], until_s: float) -> None:
        self.port, self.known, self.until_s = port, known, until_s
        self.draw = random.Random(number)
        self.outcome: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.until_s:
            kind = self.draw.choice(["whole", "stream", "leave", "bad"])
            try:
                getattr(self, kind)()
            except Exception as error:
                self.wrong.append(f"{kind}: {error!r}")

    def post(self, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", CHAT, json.dumps(body))
        return connection, connection.getresponse()

    def asked(self, body: dict[str, Any]) -> tuple[int, str]:
        connection, response = self.post(body)
        text = response.read().decode()
        connection.close()
        if response.status == 503:
            self.outcome["busy"] += 1
            time.sleep(0.2)
        return response.status, text

    def whole(self) -> None:
        one = self.draw.choice(self.known)
        status, text = self.asked(one.body)
        if status == 200:
            answer = json.loads(text)
            said = answer["choices"][0]["message"]["content"]
            self.check("whole", one, said, answer["usage"]["completion_tokens"])
        elif status != 503:
            self.wrong.append(f"whole: {status} {text}")

    def stream(self) -> None:
        one = self.draw.choice(self.known)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        status, text = self.asked({**one.body, **options})
        if status == 200:
            events = events_of(text)
            tokens = events[-1]["usage"]["completion_tokens"]
            self.check("stream", one, text_of(events), tokens)
        elif status != 503:
            self.wrong.append(f"stream: {status} {text}")

    def check(self, kind: str, one: Known, said: str, num_tokens: int) -> None:
        self.outcome[kind] += 1
        if (said, num_tokens) != (one.text, one.num_tokens):
            self.wrong.append(f"{kind}: {said!r}, {num_tokens}; alone {one.text!r}")

    def leave(self) -> None:
        """Gone before the answer, or in the middle of it."""
        body = {**self.draw.choice(self.known).body, "stream": True, "max_tokens": 80}
        body |= {"ignore_eos": True, "stop": None}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", CHAT, json.dumps(body))
        if self.draw.random() < 0.5:
            connection.getresponse().read(self.draw.randint(1, 600))
        else:
            time.sleep(self.draw.random() * 0.1)
        connection.close()
        self.outcome["left"] += 1

    def bad(self) -> None:
        kind = self.draw.choice(["image", "long", "field", "id"])
        image = {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}
        content: Any = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": image}]
        if kind == "long":
            content = "word " * 200
        fields = {"logit_bias": {"1": 1}} if kind == "field" else {}
        body = {"messages": [{"role": "user", "content": content}], **fields}
        if kind == "id":
            body = {"messages": [{"role": "user", "content": "<|image_pad|>"}]}
        status, text = self.asked(body)
        self.outcome["refused"] += status == 400
        if status not in (400, 503):
            self.wrong.append(f"{kind}: {status} {text}")
        elif status == 400:
            error = json.loads(text)["error"]
            if kind == "image" and error["param"] != "messages[0].content[1].image_url":
                self.wrong.append(f"{kind}: {error}")
            if kind == "long" and error["code"] != "context_length_exceeded":
                self.wrong.append(f"{kind}: {error}")


def resident_mib() -> float:
    """Less what the allocator keeps for later: its arenas, one for each thread, fill up slowly."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def all_at_once(port: int, known: list[Known], seconds: float) -> tuple[Counter[str], list[str]]:
    until_s = time.monotonic() + seconds
    clients = [Client(port, number, known, until_s) for number in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    outcome: Counter[str] = Counter()
    for client in clients:
        outcome += client.outcome
    return outcome, [line for client in clients for line in client.wrong]


def sequences_and_media() -> list[object]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in (Sequence, Media)]


@pytest.mark.load
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for its memory")
def test_load_leaves_nothing_behind_and_everybody_gets_their_own_answer(
    chat: Chat, known: list[Known]
) -> None:
    def is_idle() -> bool:
        stats = chat.stats().engine
        return not (stats.num_running or stats.num_waiting)

    others = sequences_and_media()  # constants of other tests

    def is_nothing_left() -> bool:
        return len(sequences_and_media()) <= len(others)

    service = ChatAdapter(MODEL, chat)
    service.close = lambda: None  # type: ignore[method-assign]  # it is asked further below
    with server(service, ChatSettings(), max_queued=LIMIT) as (port, _):
        all_at_once(port, known, SECONDS / 3)  # caches fill, allocators find their size
        wait_for(is_idle, 30)
        wait_for(is_nothing_left, 10)  # what a client left is forgotten a moment later
        before = resident_mib()
        outcome, wrong = all_at_once(port, known, SECONDS)
        wait_for(is_idle, 30)
        wait_for(is_nothing_left, 10)  # what a client left is forgotten a moment later
        growth = resident_mib() - before
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
    stats = chat.stats().engine
    print(dict(outcome), dict(stats.finished), f"{stats.num_preempted} preempted, {growth:.1f} MiB")
    assert wrong == []
    least = min(outcome[kind] for kind in ("whole", "stream", "left", "refused"))
    assert least >= 3 and outcome["busy"] > 0
    assert stats.num_free_pages == stats.num_pages == FEW_PAGES
    assert stats.num_preempted > 0 and stats.finished["cancelled"] > 0
    assert "error" not in stats.finished
    assert 'ostinato_refusals_total{status="500"}' not in page
    assert growth < GROWTH_MIB
    for steps in stats.recordings.values():
        assert steps.calls["direct"] == 0
