"""Requests that wait for the device, and in which order they get it. Knows nothing of threads.

``Fifo`` is for requests without a wish of their own; ``openpi/turns.py`` shares the device among
robots. Callers hold the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ostinato.serve.service import Reply, Request


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose request it is. Times are ``time.monotonic`` seconds.

    ``client``: the connection, or the session where there is one; turns go round among them.
    ``session``: of two requests of one session only the newer, by ``arrived_s``, is worth serving.
    ``deadline_s``: when the answer is worth nothing any more.
    """

    client: str
    session: str | None = None
    arrived_s: float = 0.0
    deadline_s: float | None = None


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in a queue."""

    request: Request
    since_s: float
    turn: Turn | None = None
    future: Future[Reply] = field(default_factory=Future)

    def refuse(self, error: Exception) -> None:
        """End it with ``error``, unless its caller has gone."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


Dropped = tuple[Waiting, Exception]


class WaitingQueue(Protocol):
    """What the device thread needs of a queue."""

    def __len__(self) -> int: ...

    def add(self, items: Sequence[Waiting]) -> list[Dropped]:
        """Let them wait; what is not worth serving any more comes back with its reason."""

    def take(self, limit: int, now_s: float) -> tuple[list[Waiting], list[Dropped]]:
        """Up to ``limit`` items that are next, and those found not worth serving."""

    def discard(self, item: Waiting) -> bool:
        """Forget an item; false if it does not wait."""

    def drain(self) -> list[Waiting]:
        """Everything; nothing waits any more."""


class Fifo:
    """First come, first served."""

    def __init__(self) -> None:
        self._items: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, items: Sequence[Waiting]) -> list[Dropped]:
        self._items.extend(items)
        return []

    def take(self, limit: int, now_s: float) -> tuple[list[Waiting], list[Dropped]]:
        count = min(len(self._items), limit)
        return [self._items.popleft() for _ in range(count)], []

    def discard(self, item: Waiting) -> bool:
        try:
            self._items.remove(item)
        except ValueError:
            return False
        return True

    def drain(self) -> list[Waiting]:
        drained = list(self._items)
        self._items.clear()
        return drained
