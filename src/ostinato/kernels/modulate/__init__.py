"""LayerNorm without affine terms, then ``(1 + scale) * normed + shift``, per segment too.

Close: the norm's sums run in another order than torch's; the modulation itself rounds alike.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.modulate import reference
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.rowwise import as_rows, check_dtypes

__all__ = ["check_segments", "modulate"]


def _fake(x: torch.Tensor, *rest: object) -> torch.Tensor:
    return x.new_empty(x.shape)


_modulate = register(
    Operator(
        name="modulate",
        reference=reference.modulate,
        kernel=lazy_kernel(__name__, "modulate"),
        exactness="close",
        tolerance=reference.tolerance,
        rows=("x", "segments"),
        is_row_invariant=True,
        largest=1e15,
    ),
    "(Tensor x, Tensor scale, Tensor shift, Tensor? segments, float eps) -> Tensor",
    _fake,
    out=True,
)


def modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    *,
    segments: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """``(1 + scale) * layer_norm(x) + shift`` of x's shape (..., width) and dtype.

    ``scale`` and ``shift`` are (n, width), possibly strided views of one projection. ``segments``
    (T,), int32 or int64 on x's device, names the row for each of the T tokens; without it n is 1.
    The values of ``segments`` are not checked: they are data of a recording.
    """
    rows = as_rows(x)
    check_segments("modulate", rows, segments, scale=scale, shift=shift)
    result: torch.Tensor = _modulate(rows, scale, shift, segments, eps)
    return result.view(x.shape)


def check_segments(
    operator: str, rows: torch.Tensor, segments: torch.Tensor | None, **tables: torch.Tensor
) -> None:
    """Refuse tables that are not (n, width), or not (1, width) where no segments are given."""
    check_dtypes(operator, rows.dtype, tables)
    for name, table in tables.items():
        if table.dim() != 2 or table.shape[1] != rows.shape[1]:
            raise ConfigError(
                f"{operator}: {name} is {tuple(table.shape)}, expected (n, {rows.shape[1]})"
            )
        if segments is None and table.shape[0] != 1:
            raise ConfigError(f"{operator}: {name} has {table.shape[0]} rows, segments are missing")
    if segments is not None and tuple(segments.shape) != (rows.shape[0],):
        raise ConfigError(
            f"{operator}: segments is {tuple(segments.shape)}, expected ({rows.shape[0]},)"
        )
