"""The device thread: one thread, a bounded queue, batches, cancellation, failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import numpy as np
import pytest

from ostinato.errors import InputError, Overloaded
from ostinato.serve.device_thread import DeviceThread, Phase
from ostinato.serve.service import Request
from tests.serve.stub import StubService


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def device(service: StubService) -> Iterator[DeviceThread]:
    device = DeviceThread(service, max_queued=3, max_batch=2)
    yield device
    service.may_warm_up.set()
    service.may_serve.set()
    device.stop()


def started(device: DeviceThread) -> DeviceThread:
    device.start()
    assert device.wait_until_settled(10) is Phase.READY
    return device


def image(value: int) -> Request:
    return Request({"image": np.full(4, 3 * value, np.uint8)})


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_each_request_gets_its_own_answer(device: DeviceThread) -> None:
    started(device)
    for value in range(20):
        reply = device.submit(image(value)).result(10)
        assert reply.outputs["embeddings"].tolist() == [[value] * 4]
        assert reply.stage_ms["upload"] == 4.0
        assert reply.stage_ms["queue"] >= 0


def test_one_thread_touches_the_service(device: DeviceThread, service: StubService) -> None:
    started(device).submit(image(1)).result(10)
    device.stop()
    assert service.is_closed
    assert service.threads == {"ostinato-device"}


def test_not_ready_is_refused(device: DeviceThread, service: StubService) -> None:
    service.may_warm_up.clear()
    device.start()
    with pytest.raises(Overloaded, match="the model is starting") as caught:
        device.submit(image(1))
    assert caught.value.retry_after_s == 1


def test_full_queue_is_refused_and_what_waited_is_served(
    device: DeviceThread, service: StubService
) -> None:
    started(device)
    service.may_serve.clear()
    futures = [device.submit(image(0))]
    wait_for(lambda: service.batches == [1])
    futures += [device.submit(image(value)) for value in (1, 2, 3)]
    with pytest.raises(Overloaded, match="3 requests are waiting, 3 may"):
        device.submit(image(4))
    service.may_serve.set()
    answers = [future.result(10).outputs["embeddings"][0, 0] for future in futures]
    assert answers == [0, 1, 2, 3]
    assert service.batches == [1, 2, 1]


def test_a_bad_request_does_not_harm_its_neighbour(
    device: DeviceThread, service: StubService
) -> None:
    started(device)
    service.may_serve.clear()
    first = device.submit(image(0))
    wait_for(lambda: service.batches == [1])
    bad = device.submit(Request({"error": InputError("broken")}))
    good = device.submit(image(5))
    service.may_serve.set()
    with pytest.raises(InputError, match="broken"):
        bad.result(10)
    assert good.result(10).outputs["embeddings"][0, 0] == 5
    assert first.result(10).outputs["embeddings"][0, 0] == 0
    assert service.batches == [1, 2]


def test_a_cancelled_request_is_skipped(device: DeviceThread, service: StubService) -> None:
    started(device)
    service.may_serve.clear()
    first = device.submit(image(0))
    wait_for(lambda: service.batches == [1])
    skipped, kept = device.submit(image(1)), device.submit(image(2))
    assert skipped.cancel()
    service.may_serve.set()
    assert kept.result(10).outputs["embeddings"][0, 0] == 2
    first.result(10)
    assert service.batches == [1, 1]


def test_a_failed_warm_up_is_a_phase_and_not_a_hang(
    device: DeviceThread, service: StubService
) -> None:
    service.warm_up_error = RuntimeError("no weights")
    device.start()
    assert device.wait_until_settled(10) is Phase.FAILED
    assert str(device.error) == "no weights"
    with pytest.raises(Overloaded, match="the model is failed"):
        device.submit(image(1))


def test_stop_cancels_what_waits(device: DeviceThread, service: StubService) -> None:
    started(device)
    service.may_serve.clear()
    running = device.submit(image(2))
    wait_for(lambda: service.batches == [1])
    waiting = device.submit(image(3))
    device.stop(timeout_s=0.01)
    with pytest.raises(CancelledError):
        waiting.result(10)
    service.may_serve.set()
    assert running.result(10).outputs["embeddings"][0, 0] == 2
    assert device.phase is Phase.STOPPED


def test_a_service_that_loses_a_result_fails_the_batch(
    device: DeviceThread, service: StubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "serve", lambda requests: [])
    started(device)
    with pytest.raises(RuntimeError, match="1 requests got 0 results"):
        device.submit(image(1)).result(10)
    assert device.phase is Phase.READY


def test_several_are_queued_side_by_side_or_not_at_all(
    device: DeviceThread, service: StubService
) -> None:
    started(device)
    with pytest.raises(Overloaded, match="0 requests are waiting, 3 may"):
        device.submit_all([image(value) for value in range(4)])
    assert device.num_queued == 0
    futures = device.submit_all([image(value) for value in range(3)])
    assert [f.result(10).outputs["embeddings"][0, 0] for f in futures] == [0, 1, 2]


def test_bytes_that_wait_are_bounded(service: StubService) -> None:
    device = DeviceThread(service, max_queued_bytes=8)
    try:
        started(device)
        service.may_serve.clear()
        first = device.submit(Request({"image": np.zeros(400, np.uint8)}))  # nothing waits yet
        wait_for(lambda: service.batches == [1])
        second = device.submit_all([image(1), image(2)])
        with pytest.raises(Overloaded, match="8 bytes are waiting, 8 may"):
            device.submit(image(3))
        service.may_serve.set()
        for future in (first, *second):
            future.result(10)
        service.may_serve.clear()  # what was served is no longer counted
        later = [device.submit(image(3))]
        wait_for(lambda: len(service.batches) == 3)
        later += [device.submit(image(value)) for value in (4, 5)]
        service.may_serve.set()
        assert [f.result(10).outputs["embeddings"][0, 0] for f in later] == [3, 4, 5]
    finally:
        service.may_serve.set()
        device.stop()


def test_each_turn_is_told(service: StubService) -> None:
    turns: list[int] = []
    device = DeviceThread(service, on_batch=turns.append)
    try:
        for future in started(device).submit_all([image(1), image(2)]):
            future.result(10)
        assert turns == [2]
    finally:
        device.stop()
