"""Force a route for the calls of a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import get_args

from ostinato.errors import ConfigError
from ostinato.recording.stats import RouteName

_forced: ContextVar[RouteName | None] = ContextVar("ostinato_route", default=None)

forced = _forced.get
"""The route forced in this context, or ``None``."""


@contextmanager
def route(name: RouteName) -> Iterator[None]:
    """Serve every call inside the ``with`` block by this route.

    ``"direct"`` always can. ``"exact"`` and ``"rung"`` record what is missing, on the caller's
    time, and raise ``RouteUnavailable`` when it cannot be recorded.
    """
    if name not in get_args(RouteName):
        raise ConfigError(f"route is {name!r}; expected one of {', '.join(get_args(RouteName))}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)
