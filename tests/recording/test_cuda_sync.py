"""Device-wide waits and captures exclude each other, whichever comes first; nobody
waits for itself.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from ostinato.recording import cuda_sync
from ostinato.recording.cuda_sync import DeviceWideGate

SOON, LATE = 0.05, 5.0


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, threading.Event]:
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, done


def test_a_wait_of_another_thread_waits_for_the_capture() -> None:
    gate, order = DeviceWideGate(), []
    synchronize = gate.guarding(lambda: order.append("synchronised"))
    with gate.capturing():
        _, done = in_thread(synchronize)
        assert not done.wait(SOON)
        order.append("captured")
    assert done.wait(LATE) and order == ["captured", "synchronised"]


def test_a_capture_waits_for_a_wait_under_way() -> None:
    gate, release, order = DeviceWideGate(), threading.Event(), []

    def slow() -> None:
        release.wait(LATE)
        order.append("synchronised")

    begun = threading.Event()

    def wait() -> None:
        with gate.waiting():
            begun.set()
            slow()

    def capture() -> None:
        with gate.capturing():
            order.append("captured")

    in_thread(wait)
    assert begun.wait(LATE)
    _, done = in_thread(capture)
    assert not done.wait(SOON)
    release.set()
    assert done.wait(LATE) and order == ["synchronised", "captured"]


def test_a_thread_does_not_wait_for_itself() -> None:
    gate = DeviceWideGate()

    def both() -> None:
        with gate.capturing():
            assert gate.guarding(lambda: 3)() == 3
        with gate.waiting(), gate.capturing():
            pass

    _, done = in_thread(both)
    assert done.wait(LATE)


def test_captures_of_two_lanes_and_waits_of_two_threads_run_together() -> None:
    gate = DeviceWideGate()
    with gate.capturing():
        _, done = in_thread(lambda: gate.capturing().__enter__())
        assert done.wait(LATE)
    gate = DeviceWideGate()
    with gate.waiting():
        _, done = in_thread(gate.guarding(lambda: None))
        assert done.wait(LATE)


def test_threads_that_wait_again_and_again_do_not_keep_a_capture_out() -> None:
    """Four of them, so that hardly ever nobody is inside a wait."""
    gate, ended = DeviceWideGate(), threading.Event()

    def keep_waiting() -> None:
        while not ended.is_set():
            with gate.waiting():
                time.sleep(0.005)

    threads = [in_thread(keep_waiting)[0] for _ in range(4)]
    time.sleep(SOON)

    def capture() -> None:
        with gate.capturing():
            pass

    begin = time.monotonic()
    for _ in range(10):
        _, done = in_thread(capture)
        assert done.wait(LATE)
    ended.set()
    for thread in threads:
        thread.join(LATE)
    assert time.monotonic() - begin < LATE / 5


def test_what_is_raised_inside_leaves_the_gate_open() -> None:
    gate = DeviceWideGate()

    def fails() -> None:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        gate.guarding(fails)()
    with pytest.raises(KeyError), gate.capturing():
        raise KeyError
    _, done = in_thread(gate.guarding(lambda: None))
    assert done.wait(LATE)
    _, done = in_thread(lambda: gate.capturing().__enter__())
    assert done.wait(LATE)


def test_functions_are_guarded_once_and_keep_their_answers() -> None:
    calls: list[tuple[Any, ...]] = []
    module = types.SimpleNamespace(
        _cuda_synchronize=lambda *a: calls.append(a), other=len, _cuda_emptyCache=lambda: 7
    )
    cuda_sync.install(module)
    first = module._cuda_synchronize
    cuda_sync.install(module)
    assert module._cuda_synchronize is first and module.other is len
    module._cuda_synchronize(1)
    assert calls == [(1,)] and module._cuda_emptyCache() == 7
    with cuda_sync.gate.capturing():
        _, done = in_thread(lambda: module._cuda_synchronize(2))
        assert not done.wait(SOON) and calls == [(1,)]
    assert done.wait(LATE) and calls == [(1,), (2,)]
