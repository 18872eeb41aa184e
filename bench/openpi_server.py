"""What does our policy server cost beyond the policy, with three raw 360x640 cameras?

A stub policy behind the server; the published openpi-client in a process and an environment of its
own; a plain ``websockets`` server with the same codec and stub beside it, in turns with ours.
``overhead``: from the last byte of a request off the socket to its reply on the socket, minus the
policy's call. The client has a core of its own, as a robot's computer is another one: where it
wakes on the server's core, it makes its next request before the server returns from ``send``. The
machine is shared: of several repeats the one counts in which the plain server
was fastest; the others are reported too. Needs no GPU.

    python -m bench.openpi_server [--rounds 150] [--repeats 5] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from bench.report import write
from ostinato.cli.run_server import uvicorn_config, wait_until_listening
from ostinato.serve.large_frames import LargeFrames
from ostinato.serve.openpi.app import build_policy_app
from ostinato.serve.openpi.contract import ObservationSpec
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.service import Reply, Request
from ostinato.serve.settings import ServerSettings
from scripts.openpi_client_env import client_python

ROOT = Path(__file__).resolve().parent.parent
ALIASES = {
    "wrist_image_left": "wrist",
    "exterior_image_1_left": "left",
    "exterior_image_2_left": "right",
}


class Stub:
    """Answers after ``stub_ms`` and notes how long it really took."""

    name = "stub"
    spec = ObservationSpec(("wrist", "left", "right"), (360, 640), 8, None, ALIASES)

    def __init__(self, stub_ms: float) -> None:
        self.stub_ms = stub_ms
        self.taken_s: list[float] = []

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        began_s = time.perf_counter()
        if self.stub_ms:
            time.sleep(self.stub_ms / 1e3)
        actions = np.zeros((8, 8), np.float32)
        self.taken_s.append(time.perf_counter() - began_s)
        return [Reply({"actions": actions}, "direct", "stub", {"infer": self.taken_s[-1] * 1e3})]

    def prepare(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests

    def metadata(self) -> Mapping[str, Any]:
        return {}

    def describe(self) -> Mapping[str, Any]:
        return {}

    def snapshot(self) -> Mapping[str, float]:
        return {}

    def events(self) -> list[str]:
        return []

    def warm_up(self) -> None: ...
    def keep_warm(self) -> None: ...
    def reset(self, session_id: str | None) -> None: ...
    def close(self) -> None: ...


def stamping(spans_s: list[float]) -> type[LargeFrames]:
    """The server's own protocol, which also notes last byte in to reply out."""

    class Stamped(LargeFrames):
        last_s = 0.0

        def buffer_updated(self, nbytes: int) -> None:
            self.last_s = time.perf_counter()
            super().buffer_updated(nbytes)

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.send":
                spans_s.append(time.perf_counter() - self.last_s)

    return Stamped


@contextmanager
def ours(stub: Stub, spans_s: list[float]) -> Iterator[int]:
    """The server in a thread of this process; its port."""
    settings = ServerSettings(port=0)
    config = uvicorn_config(
        build_policy_app(stub, settings, RobotSettings(keep_warm_s=0)), settings
    )
    config.ws = stamping(spans_s)
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until_listening(server)
        gc.collect()
        gc.freeze()  # as the command does
        yield listener.getsockname()[1]
    finally:
        gc.unfreeze()
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def plain(stub_ms: float) -> Iterator[int]:
    """The plain server in a process; its port."""
    command = [sys.executable, "-m", "bench.peers.plain_websockets", str(stub_ms)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def quantiles(values_ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values_ms)
    return {
        "p50_ms": round(statistics.median(ordered), 3),
        "p90_ms": round(ordered[int(0.9 * len(ordered))], 3),
        "p99_ms": round(ordered[int(0.99 * len(ordered))], 3),
    }


def leave_a_core() -> int:
    """The core that this process and its servers leave to the client."""
    *kept, last = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(kept) or {last})
    return last


def measure(stub_ms: float, num_rounds: int, client_core: int) -> dict[str, Any]:
    """Overhead, and both round trips."""
    stub, spans_s = Stub(stub_ms), []
    with ours(stub, spans_s) as own_port, plain(stub_ms) as plain_port:
        program = ROOT / "bench" / "peers" / "openpi_client_rounds.py"
        command = [client_python(), program, num_rounds, client_core, own_port, plain_port]
        done = subprocess.run(map(str, command), capture_output=True, text=True, check=True)
    times = json.loads(done.stdout)
    spans_s = spans_s[1:]  # the first frame is the metadata
    overhead = [(s - c) * 1e3 for s, c in zip(spans_s, stub.taken_s, strict=True)][20:]
    own, other = quantiles(times[str(own_port)]), quantiles(times[str(plain_port)])
    return {
        "overhead": quantiles(overhead),
        "round_trip": own,
        "round_trip_plain_websockets": other,
        "ratio_p50": round(own["p50_ms"] / other["p50_ms"], 3),
        "num_rounds": num_rounds,
    }


def quietest(stub_ms: float, num_rounds: int, num_repeats: int, client_core: int) -> dict[str, Any]:
    """The repeat in which the plain server was fastest, and the medians of all."""
    repeats = [measure(stub_ms, num_rounds, client_core) for _ in range(num_repeats)]
    best = min(repeats, key=lambda row: row["round_trip_plain_websockets"]["p50_ms"])
    each = {
        "overhead_p50_ms": [row["overhead"]["p50_ms"] for row in repeats],
        "ratio_p50": [row["ratio_p50"] for row in repeats],
    }
    return {**best, "each_repeat": each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    rows: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    client_core = leave_a_core()
    for stub_ms in (0.0, 8.0):
        row = quietest(stub_ms, options.rounds, options.repeats, client_core)
        rows[f"stub of {stub_ms:.0f} ms"] = row
        print(stub_ms, row, flush=True)
    write("openpi-server", rows, options.out)


if __name__ == "__main__":
    main()
