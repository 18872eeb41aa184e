"""One recording stream, used by one thread at a time, and the thread that records on it.

Everything is recorded on the lane's own thread, which stays alive: library handles and workspaces
belong to a thread, and a caller's thread may be short-lived. Work that a caller waits for goes
first; the rest runs when no call has used the lane for a moment.
"""

from __future__ import annotations

import contextvars
import logging
import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ostinato.recording.backend import Backend

IDLE_SECONDS = 0.005
"""How long a lane must be unused before work off the path begins."""

LONG_SECONDS = (0.05, 0.25, 2.0)
"""What a long job off the path takes: at least, before one has been seen, at most. A lane must have
been unused for as long before the next one begins: only then is it likely to stay so.
"""

log = logging.getLogger("ostinato")


class _Job(NamedTuple):
    work: Callable[[], Any]
    context: contextvars.Context
    future: Future[Any]
    is_urgent: bool
    is_long: bool


class Lane:
    """A backend, the lock that makes its user single, and its thread (started at first use).

    ``lock`` is held while work is enqueued, not while it runs. ``last_used``, in seconds of
    ``time.monotonic``: when the last call's work ends, as far as is known.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock = threading.RLock()
        self.last_used = 0.0
        self.long_seconds = LONG_SECONDS[1]
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

    def run_when_idle(self, job: Callable[[], Any], *, is_long: bool = False) -> Future[Any]:
        """Run ``job`` once the lane is idle; failures are logged and stay in the future.

        ``is_long``: meanwhile callers would lose much, since they are served directly; it waits
        until nobody has called for as long as the last such job took.
        """
        before = self.backend.fence()
        return self._put(lambda: self._ordered(job, before), is_urgent=False, is_long=is_long)

    def _ordered(self, job: Callable[[], Any], before: Any) -> tuple[Any, Any]:
        """Also after whatever was replayed meanwhile, from any stream: a job uses its memory."""
        self.backend.wait(before)
        self.backend.join()
        return job(), self.backend.fence()

    def _put(
        self, job: Callable[[], Any], *, is_urgent: bool, is_long: bool = False
    ) -> Future[Any]:
        with self._starting:
            if self._thread is None:
                self._start()
        future: Future[Any] = Future()
        self._inbox.put(_Job(job, contextvars.copy_context(), future, is_urgent, is_long))
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
    short: deque[_Job] = deque()
    long: deque[_Job] = deque()
    while True:
        is_quiet = False
        try:
            job = inbox.get(timeout=IDLE_SECONDS if short or long else None)
        except queue.Empty:
            is_quiet = True  # not inside this block: a job's errors would carry this one along
        if is_quiet:
            lane = owner()
            quiet_s = math.inf if lane is None else time.monotonic() - lane.last_used
            if short and quiet_s >= IDLE_SECONDS:
                _run(short.popleft(), lane)
            elif long and (lane is None or quiet_s >= lane.long_seconds):
                _run(long.popleft(), lane)
            del lane
            continue
        if job is None:
            break
        if job.is_urgent:
            _run(job, owner())
        else:
            (long if job.is_long else short).append(job)
        del job  # it holds a caller's tensors, and the next one may be long in coming
    for waiting in (*short, *long):
        waiting.future.cancel()


def _run(job: _Job, lane: Lane | None) -> None:
    if lane is None:
        job.future.cancel()
        return
    begin = time.monotonic()
    try:
        with lane.lock:
            lane.is_recording = True
            try:
                result = job.context.run(job.work)
            finally:
                lane.is_recording = False
                if job.is_long:
                    took_s = time.monotonic() - begin
                    lane.long_seconds = min(max(took_s, LONG_SECONDS[0]), LONG_SECONDS[2])
    except BaseException as error:
        if not job.is_urgent:
            log.warning("work off the path failed: %s", error)
        job.future.set_exception(error)
    else:
        job.future.set_result(result)
