"""Notices what a call reads and does outside of torch: clocks, random draws, environment, files.

A profile function of the thread sees calls of builtins however they were imported, and which code
of the user ran. Calls that torch makes for itself do not count.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

from ostinato.recording.frames import is_torch, location_of, user_frame

Report = Callable[[str, str, str | None], None]

_BUILTINS: dict[Any, tuple[str, str]] = {
    **{
        getattr(time, name): ("clock", f"time.{name}()")
        for name in (
            *("time", "time_ns", "perf_counter", "perf_counter_ns", "process_time"),
            *("monotonic", "monotonic_ns", "sleep"),
        )
    },
    io.open: ("input-output", "open()"),
    print: ("input-output", "print()"),
    input: ("input-output", "input()"),
    os.urandom: ("host-random", "os.urandom()"),
}
_DRAWS = {"random", "getrandbits"}
_ENVIRONMENT = os._Environ.__getitem__.__code__


class OutsideWatch:
    """``codes``: code objects of the user's functions that ran."""

    def __init__(self, report: Report) -> None:
        self.codes: dict[types.CodeType, None] = {}
        self._report = report
        self._former: Any = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> OutsideWatch:
        self._stack.enter_context(_numpy_draws(self._on_numpy))
        self._former = sys.getprofile()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(self._former)
        self._stack.close()

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            breach = _breach_of(argument)
        elif event == "call":
            code = frame.f_code
            if code is not _ENVIRONMENT:
                self.codes.setdefault(code)
                return
            breach = "environment", "reading an environment variable"
        else:
            return
        if breach is not None:
            self._found(*breach, frame)

    def _on_numpy(self, name: str) -> None:
        self._found("host-random", f"numpy.random.{name}()", sys._getframe())

    def _found(self, rule: str, detail: str, frame: FrameType) -> None:
        caller = user_frame(frame, keep_torch=True)
        if caller is not None and not is_torch(caller.f_code.co_filename):
            self._report(rule, detail, location_of(caller))


def _breach_of(function: Any) -> tuple[str, str] | None:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random):
        name = function.__name__
        return ("host-random", "a draw of Python's random module") if name in _DRAWS else None
    try:
        return _BUILTINS.get(function)
    except TypeError:
        return None


@contextlib.contextmanager
def _numpy_draws(report: Callable[[str], None]) -> Iterator[None]:
    """Compiled methods that no profile function sees: the module's own, replaced for a while."""
    names = [
        name
        for name, value in vars(np.random).items()
        if isinstance(getattr(value, "__self__", None), np.random.RandomState)
        and name not in ("get_state", "set_state", "seed", "set_bit_generator", "get_bit_generator")
    ]
    originals = {name: getattr(np.random, name) for name in (*names, "default_rng")}
    for name, original in originals.items():
        setattr(np.random, name, _told(name, original, report))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(np.random, name, original)


def _told(name: str, original: Callable[..., Any], report: Callable[[str], None]) -> Any:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if name != "default_rng" or not (args or kwargs):  # a seeded generator repeats itself
            report(name)
        return original(*args, **kwargs)

    return replacement
