"""The front of a chat service: its warm-up, its end, and how many requests may be under way.

The service draws tokens on a thread of its own and schedules them; this thread warms it up, writes
its events to the log, and closes it. Back-pressure is here: a request that finds no place is
refused at once, before work is spent on it.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from ostinato.errors import Overloaded
from ostinato.serve.device_thread import Phase
from ostinato.serve.openai.contract import ChatService

logger = logging.getLogger(__name__)

EVENTS_EVERY_S = 1.0


class Place:
    """Room for the answers of one request; given back once."""

    def __init__(self, front: Front, num_bytes: int) -> None:
        self._front = front
        self._since_s = time.monotonic()
        self.num_answers = 0
        self.num_bytes = num_bytes

    def widen(self, num_answers: int) -> None:
        """Room for this many answers, or ``Overloaded``; the body is parsed by now, and who asks
        for more than there can ever be room for is refused.
        """
        self._front.widen(self, num_answers)

    def release(self) -> None:
        """Give it back; again does nothing."""
        self._front.release(self, time.monotonic() - self._since_s)


class Front:
    """Owns the life of a service. ``max_open`` answers and ``max_bytes`` of bodies at once."""

    def __init__(
        self, service: ChatService, *, max_open: int, max_bytes: int, drain_s: float
    ) -> None:
        self._service = service
        self._max_open = max_open
        self._max_bytes = max_bytes
        self._drain_s = drain_s
        self._changed = threading.Condition()
        self._places: set[Place] = set()
        self._num_open = 0
        self._num_bytes = 0
        self._answer_s = 1.0  # running mean, for Retry-After only
        self._phase = Phase.STARTING
        self._error: BaseException | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="ostinato-front", daemon=True)

    @property
    def phase(self) -> Phase:
        """A service whose thread has ended is not ready, whatever it was."""
        if self._phase is Phase.READY and self._service.failure() is not None:
            return Phase.FAILED
        return self._phase

    @property
    def error(self) -> BaseException | None:
        """What ended the warm-up or the service, if something did."""
        return self._error or self._service.failure()

    @property
    def num_open(self) -> int:
        """Answers under way."""
        return self._num_open

    @property
    def num_queued(self) -> int:
        """Answers that the service has not begun, as it counts them."""
        return int(self._service.snapshot().get("num_waiting", 0))

    def start(self) -> None:
        """Begin the warm-up; returns at once."""
        self._thread.start()

    def wait_until_settled(self, timeout_s: float) -> Phase:
        """Wait for the end of the warm-up, however it ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase is not Phase.STARTING, timeout_s)
        return self.phase

    def check_room(self) -> None:
        """Raise the ``Overloaded`` that ``take`` would raise now."""
        with self._changed:
            self._check(1, 0)

    def take(self, num_bytes: int) -> Place:
        """A place for a request of one answer. Raises ``Overloaded``."""
        place = Place(self, num_bytes)
        with self._changed:
            self._check(1, num_bytes)
            self._places.add(place)
            self._num_bytes += num_bytes
            self._grow(place, 1)
        return place

    def widen(self, place: Place, num_answers: int) -> None:
        """See ``Place``."""
        with self._changed:
            if place not in self._places:
                raise Overloaded("the client has left", retry_after_s=1)
            more = num_answers - place.num_answers
            if more > 0:
                self._check(more, 0)
                self._grow(place, more)

    def release(self, place: Place, took_s: float) -> None:
        """See ``Place``."""
        with self._changed:
            if place in self._places:
                self._places.remove(place)
                self._num_open -= place.num_answers
                self._num_bytes -= place.num_bytes
                self._answer_s += 0.1 * (took_s - self._answer_s)
                self._changed.notify_all()

    def stop(self) -> None:
        """Refuse what comes, let what runs finish for ``drain_s``, then close the service."""
        with self._changed:
            if self._phase in {Phase.STARTING, Phase.READY}:
                self._phase = Phase.STOPPED
            self._changed.notify_all()
            if self._service.failure() is None:
                self._changed.wait_for(lambda: not self._num_open, self._drain_s)
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(30)

    def _grow(self, place: Place, num_answers: int) -> None:
        place.num_answers += num_answers
        self._num_open += num_answers

    def _check(self, num_answers: int, num_bytes: int) -> None:
        if (phase := self.phase) is not Phase.READY:
            raise Overloaded(f"the model is {phase.value}", retry_after_s=1)
        # one of so many answers ends after this share of the time that one takes
        retry_after_s = max(1, math.ceil(self._answer_s / max(1, self._num_open)))
        if self._num_open + num_answers > self._max_open:
            raise Overloaded(
                f"{self._num_open} answers are under way, {self._max_open} may be",
                retry_after_s=retry_after_s,
            )
        if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            raise Overloaded(
                f"requests of {self._num_bytes} bytes are under way, {self._max_bytes} may be",
                retry_after_s=retry_after_s,
            )

    def _run(self) -> None:
        try:
            self._service.warm_up()
            self._log_events()
            self._enter(Phase.READY)
            while not self._is_over():
                self._log_events()
        except BaseException as error:
            logger.exception("the chat service cannot start")
            self._error = error
            self._enter(Phase.FAILED)
        finally:
            self._service.close()

    def _enter(self, phase: Phase) -> None:
        with self._changed:
            if self._phase is Phase.STARTING:
                self._phase = phase
            self._changed.notify_all()

    def _is_over(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closing, EVENTS_EVERY_S)

    def _log_events(self) -> None:
        for sentence in self._service.events():
            logger.info("%s", sentence)
