"""Shapes shared by the operators that work on rows: flattening, row strides and tile sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from ostinato.errors import ConfigError


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` (..., width) as (rows, width) with adjacent columns; a view wherever strides allow."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 or rows.numel() == 0 else rows.contiguous()


def ceil_div(n: int, step: int) -> int:
    """``n / step`` rounded up. (``triton.cdiv`` unwraps its arguments first: microseconds.)"""
    return -(-n // step)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n`` (``n`` >= 1)."""
    return 1 << (n - 1).bit_length()


@cache
def whole_row_tile(width: int, *, elements: int = 2048) -> tuple[int, int, int]:
    """(rows, columns, warps) of a program that holds whole rows: for reductions over a row."""
    columns = power_of_two(width)
    rows = max(1, elements // columns)
    warps = min(16, max(4, rows * columns // 512))
    return rows, columns, warps


@cache
def part_row_tile(width: int, *, elements: int = 2048) -> tuple[int, int, int]:
    """(rows, columns, warps) of a program that may hold a part of a row: for elementwise work.

    Columns divide the width where a power of two of at least 64 does, so that no lane idles.
    """
    divisor = width & -width
    columns = divisor if divisor >= 64 else power_of_two(width)
    columns = min(columns, 1024, elements)
    return max(1, elements // columns), columns, 4


def check_width(operator: str, width: int, **vectors: torch.Tensor | None) -> None:
    """Refuse a vector argument that does not have one value per column."""
    for name, vector in vectors.items():
        if vector is not None and tuple(vector.shape) != (width,):
            raise ConfigError(f"{operator}: {name} is {tuple(vector.shape)}, expected ({width},)")


def check_dtypes(
    operator: str, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor | None]
) -> None:
    """Refuse tensors of another dtype than the first argument's."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != dtype:
            raise ConfigError(f"{operator}: {name} is {tensor.dtype}, expected {dtype}")
