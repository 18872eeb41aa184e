"""Calls of a region that run beside what follows them: a second stream, forked and joined.

A small region leaves most of a device idle, so that work whose result is read late costs nothing
there. Only a recording branches. A direct call stays on one stream: the host launches its kernels
one after the other anyway, and memory of two streams would have to be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Wish:
    """Calls at once, and remembers that a second stream would have had work."""

    def __init__(self) -> None:
        self.is_made = False

    def aside(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.is_made = True
        return fn(*args)

    def join(self) -> None:
        pass


class Branches:
    """Calls on ``stream``, which is forked from the current one at each call."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._held: list[tuple[Any, Any]] = []

    def aside(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        # Memory freed on the stream that goes on is used there again before the branch has read it.
        self._held.append((args, None))
        with torch.cuda.stream(self._stream):
            result = fn(*args)
        self._held[-1] = (args, result)
        return result

    def join(self) -> None:
        if self._held:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._held.clear()
