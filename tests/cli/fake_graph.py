"""Stands in for the recording runtime: exact once a shape was recorded, else direct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class FakeWhy:
    route: str
    reason: str


@dataclass(frozen=True)
class FakeStats:
    recordings: int
    recorded_bytes: int
    name: str = "not a number"


class FakeGraphed:
    def __init__(self, fn: Callable[..., Any], name: str, is_recording_on: bool) -> None:
        self.fn = fn
        self.name = name
        self.is_recording_on = is_recording_on
        self.recorded: set[tuple[int, ...]] = set()
        self.last = FakeWhy("direct", "not called yet")
        self.is_closed = False

    def record(self, pixels: torch.Tensor) -> None:
        self.recorded.add(tuple(pixels.shape))

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        is_recorded = tuple(pixels.shape) in self.recorded
        self.last = FakeWhy("exact", "recorded") if is_recorded else FakeWhy("direct", "new shape")
        result: torch.Tensor = self.fn(pixels)
        return result

    def why(self) -> FakeWhy:
        return self.last

    def stats(self) -> FakeStats:
        return FakeStats(len(self.recorded), 1000)

    def close(self) -> None:
        self.is_closed = True


class FakeGraph:
    """The factory; keeps what it made for the test to look at."""

    def __init__(self) -> None:
        self.made: list[FakeGraphed] = []

    def __call__(self, fn: Callable[..., Any], *, name: str, is_recording_on: bool) -> FakeGraphed:
        self.made.append(FakeGraphed(fn, name, is_recording_on))
        return self.made[-1]
