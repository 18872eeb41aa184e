"""Callables that the doctor's command is pointed at."""

from __future__ import annotations

import torch
from torch import Tensor


def double(x: Tensor, times: int = 2) -> Tensor:
    return x * times


def double_example() -> tuple[tuple[Tensor], dict[str, int]]:
    return (torch.ones(3),), {}


def reads(x: Tensor) -> Tensor:
    return x * x.sum().item()


def one_tensor() -> Tensor:
    return torch.ones(2)


def two_inputs() -> tuple[Tensor, int]:
    return torch.ones(2), 5


def named_inputs() -> dict[str, object]:
    return {"x": torch.ones(2), "times": 3}


def whole_call() -> tuple[tuple[Tensor], dict[str, int]]:
    return (torch.ones(2),), {"times": 7}
