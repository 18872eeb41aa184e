"""Whether a warm-up or a recording is under way in this context.

One context variable, and the count of operator verdicts, which is part of every key. Operators
ask it before they choose a fast path that has not been verified, pieces ask it where to split,
and a ``Graphed`` inside another recording asks it to become the plain callable. It knows nothing
of what is being recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


class Phase(Enum):
    """What is happening to the region that runs in this context."""

    WARM_UP = "warm-up"
    RECORDING = "recording"


class Splitter(Protocol):
    """Ends the current piece, calls ``fn`` directly, and begins the next piece."""

    def split(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...


class Brancher(Protocol):
    """Runs calls beside what follows them, until it is told to join them."""

    def aside(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...
    def join(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Activity:
    """A phase, while recording the backend's splitter, and who runs calls beside others."""

    phase: Phase
    splitter: Splitter | None = None
    brancher: Brancher | None = None


_activity: ContextVar[Activity | None] = ContextVar("ostinato_activity", default=None)

current = _activity.get
"""The activity of this context, or ``None`` outside of warm-ups and recordings."""


class Verdicts:
    """Counts changes of the operators' verdicts: a new number means that other kernels may run."""

    def __init__(self) -> None:
        self.number = 0

    def changed(self) -> None:
        """An operator was verified or refused for a signature; recordings made before are other
        ones.
        """
        self.number += 1


verdicts = Verdicts()


def is_active() -> bool:
    """True inside a warm-up or a recording."""
    return _activity.get() is not None


def is_recording() -> bool:
    """True while a backend records what runs in this context."""
    activity = _activity.get()
    return activity is not None and activity.phase is Phase.RECORDING


@contextmanager
def entering(activity: Activity | None) -> Iterator[None]:
    """Set the activity for the ``with`` block and restore the former one after it."""
    token = _activity.set(activity)
    try:
        yield
    finally:
        _activity.reset(token)


@contextmanager
def branching(*, is_worth_it: bool = True) -> Iterator[Callable[..., Any]]:
    """Inside the ``with`` block ``aside(fn, *args)`` calls ``fn``; nothing reads the result, or
    writes to the arguments, before the block ends. A recording lets it run beside what follows.
    """
    activity = _activity.get() if is_worth_it else None
    brancher = None if activity is None else activity.brancher
    if brancher is None:
        yield _at_once
        return
    try:
        yield lambda fn, *args: brancher.aside(fn, args)
    finally:
        brancher.join()


def _at_once(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


_checks: ContextVar[bool] = ContextVar("ostinato_checks", default=False)

is_checking = _checks.get
"""True while an operator proves or times itself in this context: that work is its own, not the
region's, and nobody watches it."""


@contextmanager
def checking() -> Iterator[None]:
    """For an operator's own work at the first call with a signature: waits and events are its
    own.
    """
    token = _checks.set(True)
    try:
        yield
    finally:
        _checks.reset(token)
