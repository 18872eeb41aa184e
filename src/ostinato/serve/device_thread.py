"""The one thread that owns the device, behind a bounded queue.

Handlers hand requests over and wait for futures; the event loop never computes. Requests that
arrive together are served together; who is next is the queue's business (``queues.py``). It knows
the service protocol and nothing of HTTP.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum
from functools import partial

from ostinato.errors import Overloaded
from ostinato.serve.queues import Dropped, Fifo, Turn, Waiting, WaitingQueue
from ostinato.serve.service import Reply, Request, Service

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Where a device thread is in its life."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class DeviceThread:
    """Warms a service up and serves its queue until it is stopped.

    ``is_open_early``: requests may wait for the end of the warm-up instead of being refused.
    ``on_idle`` is called, on the thread, whenever nothing was served for ``idle_s``.
    """

    def __init__(
        self,
        service: Service,
        *,
        max_queued: int = 256,
        max_queued_bytes: int = 4 << 30,
        max_batch: int = 32,
        on_batch: Callable[[int], None] = lambda num_requests: None,
        queue: WaitingQueue | None = None,
        is_open_early: bool = False,
        idle_s: float | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._max_queued = max_queued
        self._max_queued_bytes = max_queued_bytes
        self._max_batch = max_batch
        self._on_batch = on_batch
        self._queued_bytes = 0
        self._queue: WaitingQueue = Fifo() if queue is None else queue
        self._is_open_early = is_open_early
        self._idle_s = idle_s
        self._on_idle = on_idle
        self._changed = threading.Condition()
        self._phase = Phase.STARTING
        self._error: BaseException | None = None
        self._request_s = 0.1  # running mean, for Retry-After only
        self._thread = threading.Thread(target=self._run, name="ostinato-device", daemon=True)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def error(self) -> BaseException | None:
        """What ended the thread, if something did."""
        return self._error

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        """Begin the warm-up; returns at once."""
        self._thread.start()

    def wait_until_settled(self, timeout_s: float) -> Phase:
        """Wait for the end of the warm-up, however it ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase is not Phase.STARTING, timeout_s)
            return self._phase

    def submit(self, request: Request, turn: Turn | None = None) -> Future[Reply]:
        """Queue a request. Raises ``Overloaded`` when the thread is not ready or the queue full.

        A future that is cancelled before its turn frees its place at once.
        """
        return self.submit_all([request], turn)[0]

    def submit_all(
        self, requests: Sequence[Request], turn: Turn | None = None
    ) -> list[Future[Reply]]:
        """Queue all of them side by side, or none (``Overloaded``)."""
        num_bytes = sum(request.num_bytes for request in requests)
        with self._changed:
            self._check(len(requests), num_bytes)
            now_s = time.monotonic()
            waiting = [Waiting(request, now_s, turn) for request in requests]
            self._queued_bytes += num_bytes
            dropped = self._queue.add(waiting)
            self._changed.notify_all()
        self._refuse(dropped)
        for item in waiting:
            item.future.add_done_callback(partial(self._forget, item))
        return [item.future for item in waiting]

    def check_room(self, num_requests: int = 1) -> None:
        """Raise the ``Overloaded`` that ``submit`` would raise now, before work is spent."""
        with self._changed:
            self._check(num_requests, 0)

    def _check(self, num_requests: int, num_bytes: int) -> None:
        is_early = self._is_open_early and self._phase is Phase.STARTING
        if self._phase is not Phase.READY and not is_early:
            raise Overloaded(f"the model is {self._phase.value}", retry_after_s=1)
        waiting = len(self._queue)
        retry_after_s = max(1, math.ceil(waiting * self._request_s))
        if waiting + num_requests > self._max_queued:
            raise Overloaded(
                f"{waiting} requests are waiting, {self._max_queued} may",
                retry_after_s=retry_after_s,
            )
        if waiting and self._queued_bytes + num_bytes > self._max_queued_bytes:
            raise Overloaded(
                f"{self._queued_bytes} bytes are waiting, {self._max_queued_bytes} may",
                retry_after_s=retry_after_s,
            )

    def stop(self, timeout_s: float = 30.0) -> None:
        """Refuse new requests, cancel the waiting ones, finish the running ones, close."""
        with self._changed:
            if self._phase in {Phase.STARTING, Phase.READY}:
                self._phase = Phase.STOPPED
            self._cancel_waiting()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._service.warm_up()
            self._log_events()
            self._enter(Phase.READY)
            while (batch := self._take()) is not None:
                if batch:
                    self._serve(batch)
                else:
                    self._idle()
        except BaseException as error:
            logger.exception("the device thread ends")
            self._error = error
            self._enter(Phase.FAILED)
        finally:
            with self._changed:
                self._cancel_waiting()
            self._service.close()

    def _enter(self, phase: Phase) -> None:
        with self._changed:
            if self._phase is not Phase.STOPPED:
                self._phase = phase
            self._changed.notify_all()

    def _cancel_waiting(self) -> None:
        for item in self._queue.drain():
            item.future.cancel()
        self._queued_bytes = 0

    def _forget(self, item: Waiting, future: Future[Reply]) -> None:
        """After its end: a request whose caller has gone does not wait any longer."""
        if not future.cancelled():
            return  # whoever answered or refused it had taken it out
        with self._changed:
            if self._queue.discard(item):
                self._queued_bytes -= item.request.num_bytes

    def _refuse(self, dropped: Sequence[Dropped]) -> None:
        with self._changed:
            self._queued_bytes -= sum(item.request.num_bytes for item, _ in dropped)
        for item, error in dropped:
            item.refuse(error)

    def _take(self) -> list[Waiting] | None:
        """One batch of who is next; nobody after a pause; ``None`` when it is time to stop."""
        while True:
            with self._changed:
                is_due = self._changed.wait_for(
                    lambda: len(self._queue) or self._phase is not Phase.READY, self._idle_s
                )
                if self._phase is not Phase.READY:
                    return None
                if not is_due:
                    return []
                taken, dropped = self._queue.take(self._max_batch, time.monotonic())
                self._queued_bytes -= sum(item.request.num_bytes for item in taken)
                batch = [item for item in taken if item.future.set_running_or_notify_cancel()]
            if dropped:
                self._refuse(dropped)
            if batch:
                return batch

    def _idle(self) -> None:
        try:
            self._on_idle()
        except Exception:
            logger.exception("the call that keeps the device warm failed")
        self._log_events()

    def _serve(self, batch: list[Waiting]) -> None:
        began_s = time.monotonic()
        self._on_batch(len(batch))
        try:
            results = list(self._service.serve([item.request for item in batch]))
            if len(results) != len(batch):
                raise RuntimeError(f"{len(batch)} requests got {len(results)} results")
        except Exception as error:
            logger.exception("a batch of %d failed", len(batch))
            results = [error] * len(batch)
        took_s = (time.monotonic() - began_s) / len(batch)
        self._request_s += 0.1 * (took_s - self._request_s)
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                item.future.set_exception(result)
            else:
                queue_ms = (began_s - item.since_s) * 1e3
                stage_ms = {"queue": queue_ms, **result.stage_ms}
                item.future.set_result(replace(result, stage_ms=stage_ms))
        self._log_events()

    def _log_events(self) -> None:
        for sentence in self._service.events():
            logger.info("%s", sentence)
