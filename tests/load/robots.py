"""Robots at 10 Hz on one policy server: five that behave, and three that do not.

The server and the robots are processes of their own: ``python -m tests.load.robots serve`` and
``python -m tests.load.robots drive PORT SECONDS DEADLINE_MS``.
"""

from __future__ import annotations

import gc
import json
import random
import socket
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from ostinato_robot import ConnectionLost, DeadlineMissed, RobotClient, ServerError, packb
from tests.serve.openpi.observations import plain, server
from tests.serve.openpi.stub import SPEC, StubPolicy, actions_of

HW = (224, 224)
PERIOD_S = 0.1
STUB_S = 0.008
NUM_GOOD = 5


@dataclass
class Outcome:
    """What the robots saw. ``wrong`` should stay empty."""

    num_answered: int = 0
    round_trip_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    num_disturbances: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def disturbed(self, name: str) -> None:
        with self.lock:
            self.num_disturbances[name] = self.num_disturbances.get(name, 0) + 1


def good(port: int, number: int, until_s: float, deadline_ms: float, outcome: Outcome) -> None:
    """Ten observations a second, each answered in time and with its own answer."""
    observation = plain(HW, seed=number)
    wanted = actions_of(
        {**observation, "state": observation["state"].astype("f4")}, {"seed": number}
    )
    with RobotClient(port=port, session_id=f"good {number}", deadline_ms=deadline_ms) as robot:
        time.sleep(number * PERIOD_S / 8)
        next_s = time.monotonic()
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            try:
                reply = robot.infer(observation)
                took_ms = (time.monotonic() - began_s) * 1e3
                with outcome.lock:
                    outcome.num_answered += 1
                    outcome.round_trip_ms.append(took_ms)
                    if reply["actions"].tobytes() != wanted.tobytes():
                        outcome.wrong.append(f"robot {number}: another's actions")
            except (DeadlineMissed, ServerError, ConnectionLost) as error:
                with outcome.lock:
                    outcome.wrong.append(f"robot {number}: {error!r}")
            next_s += PERIOD_S
            time.sleep(max(0.0, next_s - time.monotonic()))


def handshake(port: int) -> socket.socket:
    """A bare websocket, for what no library would send."""
    bare = socket.create_connection(("127.0.0.1", port))
    bare.settimeout(5)
    bare.sendall(
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    bare.recv(1 << 16)
    return bare


def frame(data: bytes) -> bytes:
    """One binary frame with a mask of zeros."""
    return b"\x82\xff" + len(data).to_bytes(8, "big") + b"\0" * 4 + data


def stalling(port: int, until_s: float, outcome: Outcome) -> None:
    """Sends half an observation, or a whole one, and never reads an answer."""
    data = frame(packb(plain(HW)))
    while time.monotonic() < until_s:
        with handshake(port) as bare:
            for _ in range(6):
                bare.sendall(data)
            bare.sendall(data[: len(data) // 2])
            outcome.disturbed("stalled")
            time.sleep(min(2.0, max(0.0, until_s - time.monotonic())))


def disconnecting(port: int, until_s: float, outcome: Outcome) -> None:
    """Leaves while its answer is made, without a word."""
    data = frame(packb(plain(HW)))
    while time.monotonic() < until_s:
        with handshake(port) as bare:
            bare.sendall(data)
        outcome.disturbed("disconnected")
        time.sleep(PERIOD_S)


def garbage(port: int, until_s: float, outcome: Outcome) -> None:
    """Frames that are no observations, and bytes that are no frames."""
    draw, data = random.Random(0), packb(plain(HW))
    while time.monotonic() < until_s:
        with handshake(port) as bare:
            damaged = bytearray(data)
            for _ in range(20):
                damaged[draw.randrange(2000)] = draw.randrange(256)
            bare.sendall(draw.choice([frame(bytes(damaged)), draw.randbytes(2000), frame(b"")]))
            outcome.disturbed("garbage")
        time.sleep(PERIOD_S)


def drive(port: int, seconds: float, deadline_ms: float) -> Outcome:
    """All eight at once."""
    outcome, until_s = Outcome(), time.monotonic() + seconds
    jobs: list[tuple[Any, tuple[Any, ...]]] = [
        (good, (port, number, until_s, deadline_ms, outcome)) for number in range(NUM_GOOD)
    ]
    jobs += [(bad, (port, until_s, outcome)) for bad in (stalling, disconnecting, garbage)]
    threads = [threading.Thread(target=job, args=arguments) for job, arguments in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def serve() -> None:
    """An 8-ms stub until standard input ends; prints the port."""
    service = StubPolicy(replace(SPEC, camera_hw=HW))
    service.delays_s = [STUB_S]
    with server(service) as port:
        gc.collect()
        gc.freeze()  # as the command does
        print(port, flush=True)
        sys.stdin.read()


def main() -> None:
    if sys.argv[1] == "serve":
        serve()
        return
    outcome = drive(int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
    times = sorted(outcome.round_trip_ms)
    print(
        json.dumps(
            {
                "num_answered": outcome.num_answered,
                "p50_ms": times[len(times) // 2],
                "p99_ms": times[int(len(times) * 0.99)],
                "max_ms": times[-1],
                "wrong": outcome.wrong,
                "disturbances": outcome.num_disturbances,
            }
        )
    )


if __name__ == "__main__":
    main()
