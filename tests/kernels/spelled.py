"""The activations written with torch's elementary functions, in the kernels' order of operations.

torch's own fused CPU activations use other approximations of exp and erf than ``torch.exp`` does.
With these in the reference, a CPU test compares rounding points byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1.0 + torch.exp(-x))


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    # A fused multiply-add: the product is exact in double.
    factor = torch.tensor(0.044715).double()
    inner = 0.7978845608028654 * (factor * (x * x * x).double() + x.double()).float()
    return 0.5 * x * (1.0 + torch.tanh(inner))


def _gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))


def _gelu_quick(x: torch.Tensor) -> torch.Tensor:
    return x * (1.0 / (1.0 + torch.exp(-(1.702 * x))))


SPELLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: lambda x, fn=fn: fn(x.contiguous())  # type: ignore[misc]
    for name, fn in {
        "silu": _silu,
        "gelu_tanh": _gelu_tanh,
        "gelu_erf": _gelu_erf,
        "gelu_quick": _gelu_quick,
    }.items()
}
