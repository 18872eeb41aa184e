"""Gated activations on a packed projection [gate | value]. Bit-exact: no sums."""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.activations import Activation, check_activation
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rowwise import as_rows, check_dtypes, check_width
from ostinato.kernels.swiglu import reference

__all__ = ["swiglu"]


def _fake(packed: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    return packed.new_empty((packed.shape[0], packed.shape[1] // 2))


_swiglu = register(
    Operator(
        name="swiglu",
        reference=reference.swiglu,
        kernel=lazy_kernel(__name__, "swiglu"),
        exactness="bit-exact",
        rows=("packed",),
    ),
    "(Tensor packed, Tensor? bias, str activation) -> Tensor",
    _fake,
    out=True,
)


def swiglu(
    packed: torch.Tensor, bias: torch.Tensor | None = None, *, activation: Activation = "silu"
) -> torch.Tensor:
    """``activation(gate) * value`` (..., width) from ``packed`` (..., 2 * width), gate first.

    ``bias`` (2 * width,) is added first. The activation and the product round separately.
    """
    check_activation("swiglu", activation)
    if packed.shape[-1] % 2:
        raise ConfigError(f"swiglu: packed is {tuple(packed.shape)}, expected an even width")
    check_width("swiglu", packed.shape[-1], bias=bias)
    check_dtypes("swiglu", packed.dtype, {"bias": bias})
    result: torch.Tensor = _swiglu(as_rows(packed), bias, activation)
    return result.view(*packed.shape[:-1], packed.shape[-1] // 2)
