"""Callables that are found by name, with their example calls."""

from __future__ import annotations

from typing import Any

import torch


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def double_example() -> tuple[Any, ...]:
    return (torch.ones(3),), {}


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def example_inputs() -> list[Any]:
    return [((torch.ones(n),), {"y": torch.ones(n)}) for n in (2, 3)]


class Nested:
    @staticmethod
    def bad(x: torch.Tensor) -> torch.Tensor:
        return x


def bad_example() -> list[Any]:
    return []


number = 3
