"""A queue's part in the device thread: places, bytes, pauses, early requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ostinato.errors import Overloaded, Superseded
from ostinato.serve.device_thread import DeviceThread, Phase
from ostinato.serve.openpi.turns import Turns
from ostinato.serve.queues import Fifo, Turn, Waiting
from ostinato.serve.service import Reply, Request
from tests.serve.openpi.stub import StubPolicy

REQUEST = Request({"observation": {"images": {"a": np.zeros(100, np.uint8)}}, "options": {}})


class Gate(StubPolicy):
    """Serves one request per permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        self.started.release()
        assert self.permits.acquire(timeout=10)
        return [Reply({}, "direct", "gate") for _ in requests]


def test_bytes_in_maps_are_counted() -> None:
    assert REQUEST.num_bytes == 100


def test_fifo() -> None:
    queue, items = Fifo(), [Waiting(REQUEST, 0.0) for _ in range(3)]
    assert queue.add(items) == [] and len(queue) == 3
    assert queue.discard(items[1]) and not queue.discard(items[1])
    assert queue.take(1, 0.0) == ([items[0]], [])
    assert queue.drain() == [items[2]] and len(queue) == 0


def test_a_place_is_free_as_soon_as_its_caller_has_gone() -> None:
    service = Gate()
    device = DeviceThread(service, max_queued=1, max_queued_bytes=150, queue=Turns())
    device.start()
    device.wait_until_settled(10)
    running = device.submit(REQUEST, Turn("a"))
    assert service.started.acquire(timeout=10)
    waiting = device.submit(REQUEST, Turn("b"))
    with pytest.raises(Overloaded, match="1 requests are waiting, 1 may"):
        device.submit(REQUEST, Turn("c"))
    waiting.cancel()
    assert device.num_queued == 0
    third = device.submit(REQUEST, Turn("c"))
    service.permits.release(2)
    assert running.result(10).route == third.result(10).route == "direct"
    device.stop()
    assert device._queued_bytes == 0


def test_one_that_gives_way_is_told_so_and_gives_its_bytes_back() -> None:
    service = Gate()
    device = DeviceThread(service, max_batch=1, queue=Turns())
    device.start()
    device.wait_until_settled(10)
    device.submit(REQUEST, Turn("a"))
    assert service.started.acquire(timeout=10)
    old = device.submit(REQUEST, Turn("s", "s", 1.0))
    new = device.submit(REQUEST, Turn("s", "s", 2.0))
    with pytest.raises(Superseded):
        old.result(1)
    assert device._queued_bytes == 100
    service.permits.release(2)
    assert new.result(10).route == "direct"
    device.stop()


def test_requests_may_wait_for_the_warm_up() -> None:
    service = StubPolicy()
    service.may_warm_up.clear()
    device = DeviceThread(service, is_open_early=True, queue=Turns())
    device.start()
    observation: dict[str, Any] = {"images": {}, "state": np.zeros(8, "f4"), "prompt": ""}
    early = device.submit(Request({"observation": observation, "options": {}}), Turn("a"))
    assert device.phase is Phase.STARTING and not early.done()
    service.may_warm_up.set()
    assert early.result(10).route == "exact"
    device.stop()


def test_a_pause_calls_once_per_pause_and_its_failure_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[float] = []

    def fail() -> None:
        calls.append(time.monotonic())
        raise ValueError("cold")

    device = DeviceThread(Gate(), idle_s=0.05, on_idle=fail)
    device.start()
    time.sleep(0.32)
    assert device.phase is Phase.READY
    device.stop()
    assert 2 <= len(calls) <= 7
    assert "keeps the device warm failed" in caplog.text
