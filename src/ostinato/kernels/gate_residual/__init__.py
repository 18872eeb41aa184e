"""``x + gate * (y + plus)``, the gate per segment too. Bit-exact: no sums over a row."""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.gate_residual import reference
from ostinato.kernels.modulate import check_segments
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rowwise import as_rows, check_dtypes

__all__ = ["gate_residual"]


def _fake(x: torch.Tensor, *rest: object) -> torch.Tensor:
    return x.new_empty(x.shape)


_gate_residual = register(
    Operator(
        name="gate_residual",
        reference=reference.gate_residual,
        kernel=lazy_kernel(__name__, "gate_residual"),
        exactness="bit-exact",
        rows=("x", "y", "segments", "plus"),
    ),
    "(Tensor x, Tensor y, Tensor gate, Tensor? segments, Tensor? plus) -> Tensor",
    _fake,
    out=True,
)


def gate_residual(
    x: torch.Tensor,
    y: torch.Tensor,
    gate: torch.Tensor,
    *,
    segments: torch.Tensor | None = None,
    plus: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x + gate * y``, or ``x + gate * (y + plus)``, of x's shape (..., width) and dtype.

    ``y`` and ``plus`` have x's shape; each operation rounds to the dtype. ``gate`` is (n, width);
    ``segments`` (T,) names its row for each token, without it n is 1.
    """
    for name, given in (("y", y), ("plus", plus)):
        if given is not None and given.shape != x.shape:
            raise ConfigError(
                f"gate_residual: {name} is {tuple(given.shape)}, expected {tuple(x.shape)}"
            )
    rows = as_rows(x)
    check_dtypes("gate_residual", x.dtype, {"y": y, "plus": plus})
    check_segments("gate_residual", rows, segments, gate=gate)
    result: torch.Tensor = _gate_residual(
        rows, as_rows(y), gate, segments, None if plus is None else as_rows(plus)
    )
    return result.view(x.shape)
