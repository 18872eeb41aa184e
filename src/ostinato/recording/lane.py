"""One recording stream, used by one thread at a time, and the thread that records on it.

Everything is recorded on the lane's own thread, which stays alive: library handles and workspaces
belong to a thread, and a caller's thread may be short-lived. Work that a caller waits for goes
first; the rest runs when no call has used the lane for a moment.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ostinato.recording.backend import Backend

IDLE_SECONDS = 0.005
"""How long a lane must be unused before work off the path begins."""

log = logging.getLogger("ostinato")

_Job = tuple[Callable[[], Any], contextvars.Context, "Future[Any]", bool]


class Lane:
    """A backend, the lock that makes its user single, and its thread (started at first use).

    ``lock`` is held while work is enqueued, not while it runs. ``last_used`` is in seconds of
    ``time.monotonic``.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock = threading.RLock()
        self.last_used = 0.0
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stop: Callable[[], Any] = lambda: None
        self.is_recording = False

    def acquire(self) -> bool:
        """Take the lock to enqueue one call; False when a recording has it, which may take long."""
        if self.lock.acquire(False):
            return True
        while not self.lock.acquire(timeout=0.0005):
            if self.is_recording:
                return False
        return True

    def run(self, job: Callable[[], Any]) -> Any:
        """Run ``job`` on the lane's thread, in this context, ordered after this stream's work;
        wait.

        The caller's stream is ordered after what the job enqueued. Exceptions of the job are
        raised.
        """
        if threading.current_thread() is self._thread:
            return job()
        before = self.backend.fence()
        future = self._put(lambda: self._ordered(job, before), is_urgent=True)
        result, after = future.result()
        self.backend.wait(after)
        return result

    def run_when_idle(self, job: Callable[[], Any]) -> Future[Any]:
        """Run ``job`` once the lane is idle; failures are logged and stay in the future."""
        before = self.backend.fence()
        return self._put(lambda: self._ordered(job, before), is_urgent=False)

    def _ordered(self, job: Callable[[], Any], before: Any) -> tuple[Any, Any]:
        self.backend.wait(before)
        return job(), self.backend.fence()

    def _put(self, job: Callable[[], Any], *, is_urgent: bool) -> Future[Any]:
        with self._starting:
            if self._thread is None:
                self._start()
        future: Future[Any] = Future()
        self._inbox.put((job, contextvars.copy_context(), future, is_urgent))
        return future

    def _start(self) -> None:
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=_work,
            args=(self._inbox, ready, weakref.ref(self)),
            name="ostinato-lane",
            daemon=True,
        )
        self._thread.start()
        self._stop = weakref.finalize(self, _finish, self._inbox, self._thread)
        ready.result()

    def close(self) -> None:
        """Let the thread finish its urgent work and end; queued idle work is cancelled."""
        self._stop()


def _finish(inbox: queue.SimpleQueue[_Job | None], thread: threading.Thread) -> None:
    inbox.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=10)


def _work(
    inbox: queue.SimpleQueue[_Job | None], ready: Future[None], owner: weakref.ref[Lane]
) -> None:
    lane = owner()
    try:
        if lane is not None:
            lane.backend.attach()
    except BaseException as error:  # handed to whoever started the lane
        ready.set_exception(error)
        return
    del lane
    ready.set_result(None)
    waiting: deque[_Job] = deque()
    while True:
        is_quiet = False
        try:
            job = inbox.get(timeout=IDLE_SECONDS if waiting else None)
        except queue.Empty:
            is_quiet = True  # not inside this block: a job's errors would carry this one along
        if is_quiet:
            lane = owner()
            if lane is None or time.monotonic() - lane.last_used >= IDLE_SECONDS:
                _run(waiting.popleft(), lane)
            del lane
            continue
        if job is None:
            break
        if job[3]:
            _run(job, owner())
        else:
            waiting.append(job)
        del job  # it holds a caller's tensors, and the next one may be long in coming
    for _, _, future, _ in waiting:
        future.cancel()


def _run(job: _Job, lane: Lane | None) -> None:
    work, context, future, is_urgent = job
    if lane is None:
        future.cancel()
        return
    try:
        with lane.lock:
            lane.is_recording = True
            try:
                result = context.run(work)
            finally:
                lane.is_recording = False
    except BaseException as error:
        if not is_urgent:
            log.warning("work off the path failed: %s", error)
        future.set_exception(error)
    else:
        future.set_result(result)
