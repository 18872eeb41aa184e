"""A server in a process of its own, many clients with mixed and broken inputs, and a prober that
asks for its health all the while.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import ostinato
from ostinato.assets.photograph import clip_bytes, photograph_bytes
from ostinato.vision.preprocess import ImageOptions, VideoOptions
from tests.cli.encoders import FLAGS, MODEL, SMALL, picture
from tests.serve.requests import data_url

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-4  # float32; packing decides how rows are grouped in a product
SIZES = [(32, 32), (64, 96), (96, 64), (160, 32), (96, 96), (128, 160), (224, 224), (320, 96)]


@contextmanager
def server(*flags: str, device: str = "cpu") -> Iterator[int]:
    """Its port, once the warm-up is over."""
    code = "from ostinato.cli.main import main; main()"
    command = [sys.executable, "-u", "-c", code, "serve", "--model", MODEL, "--device", device]
    command += ["--encoder-only"]
    command += ["--port", "0", "--skip-server-warmup", *FLAGS, *flags]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("serving "))
        yield int(line.rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@dataclass
class Content:
    """One image or video as a request sends it, and what ``encode`` makes of it."""

    kind: str
    url: str
    expected: np.ndarray


def contents() -> list[Content]:
    """Pictures of many sizes, the photograph and, where PyAV is, the video, encoded directly."""
    clips = [clip_bytes()] if find_spec("av") is not None else []
    graph = ostinato.GraphConfig(mode="off")
    encoder = ostinato.load_encoder(MODEL, device="cpu", graph=graph)
    try:
        images = [picture(seed, *size) for seed, size in enumerate(SIZES)] + [photograph_bytes()]
        made = encoder.encode(
            images,
            clips,
            image_options=ImageOptions(**SMALL),
            video_options=VideoOptions(**SMALL),
        )
        kinds = ["image_url"] * len(images) + ["video_url"] * len(clips)
        return [
            Content(kind, data_url(content), result.embeddings.numpy())
            for kind, content, result in zip(kinds, [*images, *clips], made, strict=True)
        ]
    finally:
        encoder.close()


BROKEN = [
    (data_url(picture(1)[:200]), "broken-image"),
    (data_url(b"no image at all"), "not-an-image"),
    (data_url(b""), "empty"),
    ("data:image/png;base64,###", "data-url"),
    ("https://example.org/a.png", "no-network"),
]


@dataclass
class Outcome:
    """What all clients saw. ``wrong`` should stay empty."""

    num_served: int = 0
    num_refused: int = 0
    routes: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.health_ms, percent))


def post(connection: http.client.HTTPConnection, parts: list[dict[str, Any]]) -> Any:
    body = {
        "task": "token_embed",
        "input": parts,
        "encoding_format": "bytes",
        "mm_processor_kwargs": SMALL,
    }
    connection.request("POST", "/pooling", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response, response.read()


def client(port: int, seed: int, until_s: float, inputs: list[Content], outcome: Outcome) -> None:
    """Requests of one to three items; one in five holds something broken."""
    draw = np.random.default_rng(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        while time.monotonic() < until_s:
            chosen = [inputs[i] for i in draw.integers(0, len(inputs), draw.integers(1, 4))]
            parts = [{"type": c.kind, c.kind: {"url": c.url}} for c in chosen]
            rule = None
            if draw.random() < 0.2:
                url, rule = BROKEN[draw.integers(len(BROKEN))]
                place = int(draw.integers(len(parts) + 1))
                parts.insert(place, {"type": "image_url", "image_url": {"url": url}})
            response, content = post(connection, parts)
            with outcome.lock:
                check(response, content, chosen, rule, outcome)
    except Exception as error:
        with outcome.lock:
            outcome.wrong.append(f"client {seed}: {error!r}")
    finally:
        connection.close()


def check(
    response: Any, content: bytes, chosen: list[Content], rule: str | None, outcome: Outcome
) -> None:
    if rule is not None:
        error = json.loads(content).get("error", {})
        outcome.num_refused += 1
        if (response.status, error.get("code")) != (400, rule):
            outcome.wrong.append(f"{rule}: answered {response.status} {content[:200]!r}")
        return
    if response.status != 200:
        outcome.wrong.append(f"a good request: answered {response.status} {content[:200]!r}")
        return
    outcome.num_served += 1
    for item, want in zip(json.loads(response.headers["metadata"])["data"], chosen, strict=True):
        outcome.routes.add(item["route"])
        got = np.frombuffer(content[item["start"] : item["end"]], "<f4").reshape(item["shape"])
        distance = np.abs(got - want.expected).max() if got.shape == want.expected.shape else np.inf
        if not distance <= TOLERANCE * np.abs(want.expected).max():
            outcome.wrong.append(f"grid {item['grid_thw']} is {distance} off")


PROBE = """
import http.client, json, sys, time
port, seconds = int(sys.argv[1]), float(sys.argv[2])
connection, results = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
until_s = time.monotonic() + seconds
while time.monotonic() < until_s:
    began_s = time.perf_counter()
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    results.append(((time.perf_counter() - began_s) * 1e3, response.status))
    time.sleep(0.02)
print(json.dumps(results))
"""


def start_probe(port: int, seconds: float) -> subprocess.Popen[str]:
    """A process that asks for the health up to fifty times a second; of its own, so that the
    clients' threads do not count as the server's delay.
    """
    command = [sys.executable, "-c", PROBE, str(port), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run_clients(port: int, *, num_clients: int, seconds: float) -> Outcome:
    """Everybody at once for so long."""
    inputs, outcome = contents(), Outcome()
    until_s = time.monotonic() + seconds
    prober = start_probe(port, seconds)
    threads = [
        threading.Thread(target=client, args=(port, seed, until_s, inputs, outcome))
        for seed in range(num_clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    for took_ms, status in json.loads(prober.communicate(timeout=60)[0]):
        outcome.health_ms.append(took_ms)
        if status != 200:
            outcome.wrong.append(f"health answered {status}")
    return outcome


def metrics(port: int) -> dict[str, float]:
    """The numbers of the metrics page by name and labels."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    rows = [row.rpartition(" ") for row in page.splitlines() if not row.startswith("#")]
    return {name: float(value) for name, _, value in rows}
