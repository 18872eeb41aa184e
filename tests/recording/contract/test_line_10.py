"""Line 10, threads: each caller gets its own answer, whoever records meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ostinato
from ostinato import GraphConfig, state
from tests.mutations import assert_fails_under
from tests.recording.segments import TOKENS
from tests.recording.serving import T, content, graphed, rand

NUM_THREADS, NUM_CALLS = 4, 200


def fn(x: T) -> T:
    return torch.softmax(x * 2, -1) + x.cumsum(-1)


def in_threads(work: Callable[[int], None], num_threads: int = NUM_THREADS) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def check_distinct_inputs() -> None:
    served = graphed(fn)
    barrier = threading.Barrier(NUM_THREADS)

    def work(number: int) -> None:
        barrier.wait()
        calls = [rand(1000 * number + i, 4, 3 + i % 5) for i in range(NUM_CALLS)]
        held = [served(x) for x in calls]
        assert [content(h) for h in held] == [content(fn(x)) for x in calls]

    in_threads(work)
    stats = served.stats()
    assert sum(stats.calls.values()) == NUM_THREADS * NUM_CALLS
    assert stats.calls["exact"] >= 0.3 * NUM_THREADS * NUM_CALLS
    assert stats.num_recorded == 5


def test_distinct_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("lane.no_lock", check_distinct_inputs, monkeypatch)


def test_distinct_inputs_by_rungs() -> None:
    config = GraphConfig(min_hits=1, mode="ladder")
    served = graphed(lambda x: x * 2 + 1, config, grows={"x": {0: TOKENS}})
    served.record(rand(0, 4, 3))

    def work(number: int) -> None:
        calls = [rand(1000 * number + i, 1 + (i * 7 + number) % 32, 3) for i in range(NUM_CALLS)]
        held = [served(x) for x in calls]
        assert [content(h) for h in held] == [content(x * 2 + 1) for x in calls]

    in_threads(work)
    assert served.stats().calls["rung"] >= 0.3 * NUM_THREADS * NUM_CALLS


def test_short_lived_threads() -> None:
    served = graphed(fn)
    for i in range(30):

        def work(number: int, i: int = i) -> None:
            x = rand(i, 4, 3)
            assert content(served(x)) == content(fn(x))

        in_threads(work, 1)
    assert served.stats().calls["exact"] == 30


def test_everything_is_recorded_on_one_thread_that_stays() -> None:
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()  # which the ledger does not look into

    def where(x: T) -> T:
        if state.is_recording():
            seen.put(threading.get_ident())
        return x * 2

    served = graphed(where)
    in_threads(lambda n: served(rand(n, n + 1)), 4)
    idents = {seen.get() for _ in range(seen.qsize())}
    assert len(idents) == 1 and threading.get_ident() not in idents
    assert served._only.runner.lane._thread.is_alive()  # type: ignore[union-attr]


def test_other_threads_work_is_not_changed_by_a_recording() -> None:
    """Neither their draws from private generators, nor their modes, nor what they compute."""
    served = graphed(fn)
    stop = threading.Event()
    wrong: list[Any] = []

    def other() -> None:
        generator, twin = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        x = torch.ones(8, requires_grad=True)
        while not stop.is_set():
            if not torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=twin)):
                wrong.append("draws")
            (x * x).sum().backward()
            if not torch.equal(x.grad, 2 * torch.ones(8)):  # type: ignore[arg-type]
                wrong.append("gradients")
            x.grad = None
            float(x.sum().item())  # would be refused inside of a recording
            repr(x)

    thread = threading.Thread(target=other)
    thread.start()
    for n in range(1, 30):
        served(rand(n, n))
    stop.set()
    thread.join()
    assert not wrong and served.stats().num_recorded == 29


def test_a_forced_route_belongs_to_its_thread() -> None:
    served = graphed(fn)
    served(rand(0, 3))
    with ostinato.route("direct"):
        in_threads(lambda n: served(rand(0, 3)), 1)
        assert served.stats().calls["direct"] == 0
        served(rand(0, 3))
    assert served.stats().calls["direct"] == 1
