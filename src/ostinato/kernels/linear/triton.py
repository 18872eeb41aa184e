"""A product of few rows: tiles over rows and columns, the inner dimension split where asked.

The parts of a split are written in fp32 and summed from first to last by the kernel that follows:
a plain epilogue, or the residual addition and norm that follow a projection anyway.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.linear.variants import INNER, STAGES, Tiling
from ostinato.kernels.norm.triton import normalised
from ostinato.kernels.rowwise import ceil_div, part_row_tile, whole_row_tile
from ostinato.kernels.triton_activations import activate
from ostinato.kernels.triton_math import through


@quick
@triton.jit(do_not_specialize=["num_rows"])
def product_kernel(
    x_pointer,
    weight_pointer,
    bias_pointer,
    out_pointer,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    weight_stride,
    inputs_per_split,
    is_split: tl.constexpr,
    has_bias: tl.constexpr,
    is_even: tl.constexpr,
    activation: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_inner: tl.constexpr,
):
    """Programs of one column tile are neighbours, so that the weight is read from memory once."""
    row_tiles = tl.cdiv(num_rows, tile_rows)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    row = (tile % row_tiles) * tile_rows + tl.arange(0, tile_rows)
    column = (tile // row_tiles) * tile_columns + tl.arange(0, tile_columns)
    inner = tl.arange(0, tile_inner)
    begin = split * inputs_per_split
    end = tl.minimum(begin + inputs_per_split, num_inputs)
    # Rows and columns past the end read the first ones: they are not written.
    x_row = x_pointer + tl.where(row < num_rows, row, 0)[:, None] * x_stride
    weight_row = weight_pointer + tl.where(column < num_outputs, column, 0)[None, :] * weight_stride
    sums = tl.zeros((tile_rows, tile_columns), dtype=tl.float32)
    for start in range(begin, end, tile_inner):
        k = start + inner
        if is_even:
            x = tl.load(x_row + k[None, :])
            weight = tl.load(weight_row + k[:, None])
        else:
            x = tl.load(x_row + k[None, :], mask=k[None, :] < end, other=0.0)
            weight = tl.load(weight_row + k[:, None], mask=k[:, None] < end, other=0.0)
        sums = tl.dot(x, weight, sums, input_precision="ieee")
    is_inside = (row[:, None] < num_rows) & (column[None, :] < num_outputs)
    offset = row[:, None] * num_outputs + column[None, :]
    if is_split:
        tl.store(out_pointer + split * num_rows * num_outputs + offset, sums, mask=is_inside)
    else:
        if has_bias:
            bias = tl.load(bias_pointer + column, mask=column < num_outputs, other=0.0)
            sums += bias.to(tl.float32)[None, :]
        if activation != "":
            sums = activate(through(sums, out_pointer), out_pointer, activation)
        tl.store(out_pointer + offset, sums, mask=is_inside)


@triton.jit
def _summed(parts_pointer, offset, is_inside, part_size, splits: tl.constexpr):
    sums = tl.load(parts_pointer + offset, mask=is_inside, other=0.0)
    for split in tl.static_range(1, splits):
        sums += tl.load(parts_pointer + split * part_size + offset, mask=is_inside, other=0.0)
    return sums


@quick
@triton.jit(do_not_specialize=["num_rows"])
def sum_kernel(
    parts_pointer,
    bias_pointer,
    out_pointer,
    num_rows,
    width: tl.constexpr,
    splits: tl.constexpr,
    has_bias: tl.constexpr,
    activation: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    offset = row * width + column
    sums = _summed(parts_pointer, offset, is_inside, num_rows * width, splits)
    if has_bias:
        sums += tl.load(bias_pointer + column, mask=column < width, other=0.0).to(tl.float32)
    if activation != "":
        sums = activate(through(sums, out_pointer), out_pointer, activation)
    tl.store(out_pointer + offset, sums, mask=is_inside)


@quick
@triton.jit(do_not_specialize=["num_rows"])
def sum_add_norm_kernel(
    parts_pointer,
    bias_pointer,
    residual_pointer,
    weight_pointer,
    norm_bias_pointer,
    y_pointer,
    total_pointer,
    num_rows,
    eps,
    residual_stride: tl.constexpr,
    width: tl.constexpr,
    splits: tl.constexpr,
    has_bias: tl.constexpr,
    is_rms: tl.constexpr,
    has_weight: tl.constexpr,
    has_norm_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    offset = row * width + column
    sums = _summed(parts_pointer, offset, is_inside, num_rows * width, splits)
    if has_bias:
        sums += tl.load(bias_pointer + column, mask=column < width, other=0.0).to(tl.float32)
    product = through(sums, total_pointer)
    residual = tl.load(residual_pointer + row * residual_stride + column, mask=is_inside, other=0.0)
    x = through(product + residual.to(tl.float32), total_pointer)
    tl.store(total_pointer + offset, x, mask=is_inside)
    y = normalised(x, is_inside, column, weight_pointer, norm_bias_pointer, y_pointer, eps, width,
                   is_rms, has_weight, has_norm_bias)  # fmt: skip
    tl.store(y_pointer + offset, y, mask=is_inside)


def multiply(x, weight, bias, activation, tiling: Tiling):
    """``activation(x @ weight^T + bias)`` of two-byte (or, interpreted, fp32) rows."""
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    out = x.new_empty((num_rows, num_outputs))
    if tiling.splits == 1:
        _multiply_into(out, x, weight, bias, activation, tiling)
        return out
    parts = parts_of_tiles(x, weight, tiling)
    tile_rows, tile_columns, warps = part_row_tile(num_outputs)
    grid = (ceil_div(num_rows, tile_rows), ceil_div(num_outputs, tile_columns))
    sum_kernel[grid](
        parts,
        bias if bias is not None else x,
        out,
        num_rows,
        width=num_outputs,
        splits=parts.shape[0],
        has_bias=bias is not None,
        activation=activation,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return out


def sum_add_norm(parts, bias, residual, norm_weight, norm_bias, eps, *, dtype, is_rms):
    """``(norm(h), h)`` with ``h = residual + (sum of parts + bias)``, in ``dtype``."""
    num_rows, width = residual.shape
    y = residual.new_empty((num_rows, width), dtype=dtype)
    total = torch.empty_like(y)
    tile_rows, tile_columns, warps = whole_row_tile(width)
    sum_add_norm_kernel[(ceil_div(num_rows, tile_rows),)](
        parts,
        bias if bias is not None else residual,
        residual,
        norm_weight if norm_weight is not None else residual,
        norm_bias if norm_bias is not None else residual,
        y,
        total,
        num_rows,
        eps,
        residual_stride=residual.stride(0),
        width=width,
        splits=parts.shape[0],
        has_bias=bias is not None,
        is_rms=is_rms,
        has_weight=norm_weight is not None,
        has_norm_bias=norm_bias is not None,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return y, total


def parts_of_tiles(x, weight, tiling):
    """(splits, rows, outputs) fp32: what each part of the inner dimension adds up to."""
    num_splits = ceil_div(x.shape[1], _inputs_per_split(x.shape[1], tiling.splits))
    shape = (num_splits, x.shape[0], weight.shape[0])
    parts = torch.empty(shape, dtype=torch.float32, device=x.device)
    _multiply_into(parts, x, weight, None, "", tiling)
    return parts


def parts_of_batch(x, weight, num_parts):
    """The same by the library, for equal parts of the inner dimension."""
    rows = x.unflatten(1, (num_parts, -1)).transpose(0, 1)
    columns = weight.unflatten(1, (num_parts, -1)).permute(1, 2, 0)
    if x.dtype == torch.float32:
        return torch.bmm(rows, columns)
    return torch.bmm(rows, columns, out_dtype=torch.float32)


def _multiply_into(out, x, weight, bias, activation, tiling):
    num_rows, num_inputs = x.shape
    num_outputs = weight.shape[0]
    tiles = ceil_div(num_rows, tiling.rows) * ceil_div(num_outputs, tiling.columns)
    is_split = out.dim() == 3
    product_kernel[(tiles, out.shape[0] if is_split else 1)](
        x,
        weight,
        bias if bias is not None else x,
        out,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        weight.stride(0),
        _inputs_per_split(num_inputs, tiling.splits),
        is_split=is_split,
        has_bias=bias is not None,
        is_even=num_inputs % INNER == 0,
        activation=activation,
        tile_rows=tiling.rows,
        tile_columns=tiling.columns,
        tile_inner=INNER,
        num_warps=tiling.warps,
        num_stages=STAGES,
        enable_fp_fusion=False,
    )


def _inputs_per_split(num_inputs, splits):
    return ceil_div(ceil_div(num_inputs, splits), INNER) * INNER
