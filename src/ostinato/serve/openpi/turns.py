"""Shares one device among robots: turns go round, old observations give way, late work is dropped.

A robot is its session, or its connection where it names no session. Within a robot requests are
served in the order they came; only where a session is named does a newer one replace an older.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from ostinato.errors import DeadlineMissed, Superseded
from ostinato.serve.queues import Dropped, Turn, Waiting


def deadline_missed(turn: Turn, where: str) -> DeadlineMissed:
    """The error of a request whose time is over."""
    assert turn.deadline_s is not None
    limit_ms = (turn.deadline_s - turn.arrived_s) * 1e3
    return DeadlineMissed(f"[deadline-missed] not answered within {limit_ms:.0f} ms: {where}")


class Turns:
    """A queue of robots, each with a queue of its own. Items have a ``Turn``."""

    def __init__(self) -> None:
        self._robots: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._robots.values()))

    def add(self, items: Sequence[Waiting]) -> list[Dropped]:
        dropped: list[Dropped] = []
        for item in items:
            turn = _turn(item)
            waiting = self._robots.setdefault(turn.client, deque())
            waiting.append(item)
            if (
                turn.session is not None
            ):  # requests are read side by side: the last is not the newest
                newest = max(reversed(waiting), key=lambda one: _turn(one).arrived_s)
                reason = "[superseded] the session has sent a newer observation"
                dropped += [(one, Superseded(reason)) for one in waiting if one is not newest]
                self._robots[turn.client] = deque([newest])
        return dropped

    def take(self, limit: int, now_s: float) -> tuple[list[Waiting], list[Dropped]]:
        taken: list[Waiting] = []
        dropped: list[Dropped] = []
        while self._robots and len(taken) < limit:
            client, items = next(iter(self._robots.items()))
            item = items.popleft()
            if items:
                self._robots.move_to_end(client)  # whoever was served stands at the end
            else:
                del self._robots[client]
            turn = _turn(item)
            if turn.deadline_s is not None and turn.deadline_s <= now_s:
                dropped.append((item, deadline_missed(turn, "it waited for the device")))
            else:
                taken.append(item)
        return taken, dropped

    def discard(self, item: Waiting) -> bool:
        client = _turn(item).client
        items = self._robots.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._robots[client]
        return True

    def drain(self) -> list[Waiting]:
        drained = [item for items in self._robots.values() for item in items]
        self._robots.clear()
        return drained


def _turn(item: Waiting) -> Turn:
    assert item.turn is not None
    return item.turn
