"""One thread records, in the caller's context; what nobody waits for runs when the lane is idle."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from ostinato.recording.lane import IDLE_SECONDS, LONG_SECONDS, Lane
from ostinato.recording.tape import TapeLane
from tests.mutations import assert_fails_under

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def test_jobs_run_on_one_thread_in_the_callers_context_and_give_results() -> None:
    lane = Lane(TapeLane())
    WHO.set("me")
    seen = [lane.run(lambda: (threading.get_ident(), WHO.get())) for _ in range(3)]
    assert len(set(seen)) == 1 and seen[0][1] == "me" and seen[0][0] != threading.get_ident()
    assert lane.run(lambda: lane.run(lambda: 7)) == 7
    with pytest.raises(KeyError):
        lane.run(lambda: {}["x"])
    assert not lane.is_recording and lane.lock.acquire(False)
    lane.lock.release()
    lane.close()


class Noting(TapeLane):
    """Notes what a lane orders after what."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def join(self) -> None:
        self.seen.append(f"join in {threading.current_thread().name}")

    def fence(self) -> None:
        self.seen.append("fence")

    def wait(self, fence: None) -> None:
        self.seen.append("wait")


def check_jobs_come_after_what_was_replayed_meanwhile() -> None:
    """A fence is from when a job was put; calls may have come since."""
    backend = Noting()
    lane = Lane(backend)
    lane.run_when_idle(lambda: backend.seen.append("job")).result(timeout=10)
    assert backend.seen == ["fence", "wait", "join in ostinato-lane", "job", "fence"]
    backend.seen.clear()
    lane.run(lambda: backend.seen.append("job"))
    assert backend.seen == ["fence", "wait", "join in ostinato-lane", "job", "fence", "wait"]
    lane.close()


def test_jobs_come_after_what_was_replayed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(
        "lane.jobs_join_nothing", check_jobs_come_after_what_was_replayed_meanwhile, monkeypatch
    )


def check_idle_work_waits() -> None:
    lane = Lane(TapeLane())
    order: list[Any] = []
    lane.run(lambda: None)
    lane.last_used = time.monotonic()
    future = lane.run_when_idle(lambda: order.append("idle"))
    until = time.monotonic() + 4 * IDLE_SECONDS
    while time.monotonic() < until:
        lane.last_used = time.monotonic()
        lane.run(lambda: order.append("urgent"))
    future.result(timeout=10)
    assert order[-1] == "idle" and order.count("idle") == 1 and order[0] == "urgent"
    lane.close()


def test_idle_work_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("lane.idle_work_is_urgent", check_idle_work_waits, monkeypatch)


def check_long_work_waits_longer() -> None:
    lane = Lane(TapeLane())
    order: list[str] = []
    lane.last_used = time.monotonic()
    long = lane.run_when_idle(lambda: order.append("long") or time.sleep(0.1), is_long=True)
    short = lane.run_when_idle(lambda: order.append("short"))
    short.result(timeout=10)
    assert not long.done()
    long.result(timeout=10)
    assert order == ["short", "long"]
    assert 0.1 <= lane.long_seconds < LONG_SECONDS[2]
    lane.close()


def test_long_work_waits_for_a_pause_as_long_as_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_fails_under("lane.long_work_is_short", check_long_work_waits_longer, monkeypatch)


def test_failures_of_idle_work_stay_in_the_future(caplog: pytest.LogCaptureFixture) -> None:
    lane = Lane(TapeLane())
    with pytest.raises(ZeroDivisionError):
        lane.run_when_idle(lambda: 1 / 0).result(timeout=10)
    assert "work off the path failed" in caplog.text
    assert lane.run(lambda: 1) == 1
    lane.close()


def test_acquire_gives_up_while_a_recording_runs() -> None:
    lane = Lane(TapeLane())
    started, end = threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        end.wait(10)

    future = lane.run_when_idle(job)
    started.wait(10)
    assert lane.acquire() is False
    end.set()
    future.result(timeout=10)
    assert lane.acquire() is True
    lane.lock.release()
    lane.close()


def test_closing_ends_the_thread_and_cancels_what_waits() -> None:
    lane = Lane(TapeLane())
    lane.run(lambda: None)
    thread = lane._thread
    lane.last_used = time.monotonic() + 1000
    future = lane.run_when_idle(lambda: None)
    lane.close()
    assert thread is not None and not thread.is_alive() and future.cancelled()


def test_a_lane_that_nobody_holds_ends_its_thread() -> None:
    lane = Lane(TapeLane())
    lane.run(lambda: None)
    thread = lane._thread
    del lane
    gc.collect()
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


def test_a_job_is_let_go_when_it_is_done() -> None:
    lane = Lane(TapeLane())

    class Held: ...

    held = Held()
    reference = weakref.ref(held)
    lane.run(lambda held=held: None)
    del held
    for _ in range(100):
        if reference() is None:
            break
        time.sleep(0.01)
    assert reference() is None
    lane.close()


def test_a_backend_that_cannot_attach_fails_its_first_caller() -> None:
    class Broken(TapeLane):
        def attach(self) -> None:
            raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        Lane(Broken()).run(lambda: None)
