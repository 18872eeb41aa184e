"""Bilinear interpolation of a learned position table, added to the patches. Bit-exact.

The four products are added from first to last; the operator says so, so that order is its own.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.position_interpolation_add import reference
from ostinato.kernels.rowwise import check_dtypes

__all__ = ["position_interpolation_add"]


def _fake(x: torch.Tensor, *rest: object) -> torch.Tensor:
    return x.new_empty(x.shape)


_add = register(
    Operator(
        name="position_interpolation_add",
        reference=reference.position_interpolation_add,
        kernel=lazy_kernel(__name__, "position_interpolation_add"),
        exactness="bit-exact",
        rows=("x", "indices", "weights"),
    ),
    "(Tensor x, Tensor table, Tensor indices, Tensor weights) -> Tensor",
    _fake,
    out=True,
)


def position_interpolation_add(
    x: torch.Tensor, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """``x + sum over corners of table[indices] * weights``, of x's shape (T, width) and dtype.

    ``table`` (positions, width) has x's dtype, ``indices`` (T, 4) are int32 or int64, ``weights``
    (T, 4) usually fp32: then the interpolation rounds to x's dtype once, before the addition.
    """
    corners = (x.shape[0], 4)
    if tuple(indices.shape) != corners or tuple(weights.shape) != corners:
        raise ConfigError(
            f"position_interpolation_add: indices are {tuple(indices.shape)} and weights "
            f"{tuple(weights.shape)}, expected {corners}"
        )
    if table.shape[1] != x.shape[1]:
        raise ConfigError(
            f"position_interpolation_add: table is {table.shape[1]} wide, x is {x.shape[1]}"
        )
    check_dtypes("position_interpolation_add", x.dtype, {"table": table})
    result: torch.Tensor = _add(x, table, indices, weights)
    return result
