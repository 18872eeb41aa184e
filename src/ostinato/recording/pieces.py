"""Calls a function directly in the middle of a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato import state


def direct(fn: Callable[..., Any], *args: Any) -> Any:
    """Call ``fn(*args)`` now, and again at every replay of the recording under way.

    While a backend records, the current piece ends, ``fn`` runs unrecorded on the recorded tensors,
    and the next piece begins; its Python runs at every replay. ``fn`` takes what it needs as
    arguments, and returns tensors of fixed shape or Python values that never change; otherwise the
    replay raises ``RecordingRefused`` (rule ``piece-result``). Outside of a recording this is
    ``fn(*args)``.
    """
    activity = state.current()
    if activity is None or activity.splitter is None:
        return fn(*args)
    if activity.brancher is not None:
        activity.brancher.join()
    return activity.splitter.split(fn, args)
