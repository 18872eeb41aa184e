"""The activations that gelu and swiglu know by name, as torch computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch.nn import functional

from ostinato.errors import ConfigError

Activation = Literal["silu", "gelu_tanh", "gelu_erf", "gelu_quick"]


def gelu_quick(x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(1.702 * x)``; each of the three operations rounds."""
    return x * torch.sigmoid(1.702 * x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "gelu_quick": gelu_quick,
}


def check_activation(operator: str, activation: str) -> None:
    """Refuse a name that is not in the table."""
    if activation not in FUNCTIONS:
        raise ConfigError(
            f"{operator}: activation is {activation!r}, expected one of {sorted(FUNCTIONS)}"
        )
