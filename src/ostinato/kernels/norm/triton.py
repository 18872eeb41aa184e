"""One program holds whole rows in registers: one read, one write, two sums in fp32."""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.launch import quick
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.tiles import tile
from ostinato.kernels.triton_math import through, through_pairs


@triton.jit
def normalised(x, is_inside, column, weight_pointer, bias_pointer, y_pointer, eps,
               width: tl.constexpr, is_rms: tl.constexpr, has_weight: tl.constexpr,
               has_bias: tl.constexpr):  # fmt: skip
    """Normalise whole rows (rows, columns) of fp32 ``x``, zero outside; the end is not rounded."""
    # Loaded before the sums, which take longer than the way to the memory.
    if has_weight:
        weight = tl.load(weight_pointer + column, mask=column < width, other=0.0)
    if has_bias:
        bias = tl.load(bias_pointer + column, mask=column < width, other=0.0)
    if not is_rms:
        mean = tl.sum(x, axis=1)[:, None] / width
        x = tl.where(is_inside, x - mean, 0.0)
    variance = tl.sum(x * x, axis=1)[:, None] / width
    y = x * tl.rsqrt(variance + eps)
    if is_rms:
        y = through_pairs(y, y_pointer)
    if has_weight:
        y *= weight.to(tl.float32)
    if has_bias:
        y += bias.to(tl.float32)
    return y


@quick
@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    x_pointer,
    residual_pointer,
    weight_pointer,
    bias_pointer,
    y_pointer,
    total_pointer,
    num_rows,
    eps,
    x_stride: tl.constexpr,
    residual_stride: tl.constexpr,
    width: tl.constexpr,
    is_rms: tl.constexpr,
    has_residual: tl.constexpr,
    has_weight: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    x = tl.load(x_pointer + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    if has_residual:
        other = tl.load(
            residual_pointer + row * residual_stride + column, mask=is_inside, other=0.0
        )
        x = through(x + other.to(tl.float32), total_pointer)
        tl.store(total_pointer + row * width + column, x, mask=is_inside)
    y = normalised(x, is_inside, column, weight_pointer, bias_pointer, y_pointer, eps, width,
                   is_rms, has_weight, has_bias)  # fmt: skip
    tl.store(y_pointer + row * width + column, y, mask=is_inside)


def _launch(x, residual, weight, bias, eps, *, is_rms, out=None):
    num_rows, width = x.shape
    y = torch.empty((num_rows, width), dtype=x.dtype, device=x.device) if out is None else out
    total = torch.empty_like(y) if residual is not None else None
    kind = "rms_norm" if is_rms else "layer_norm"
    name = kind if residual is None else f"add_{kind}"
    tile_rows, tile_columns, warps = tile(name, width)
    norm_kernel[(ceil_div(num_rows, tile_rows),)](
        x,
        residual if residual is not None else x,
        weight if weight is not None else x,
        bias if bias is not None else x,
        y,
        total if total is not None else y,
        num_rows,
        eps,
        x_stride=x.stride(0),
        residual_stride=residual.stride(0) if residual is not None else 0,
        width=width,
        is_rms=is_rms,
        has_residual=residual is not None,
        has_weight=weight is not None,
        has_bias=bias is not None,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    return y if total is None else (y, total)


def layer_norm(x, weight, bias, eps, *, out=None):
    return _launch(x, None, weight, bias, eps, is_rms=False, out=out)


def rms_norm(x, weight, eps, *, out=None):
    return _launch(x, None, weight, None, eps, is_rms=True, out=out)


def add_layer_norm(x, residual, weight, bias, eps):
    return _launch(x, residual, weight, bias, eps, is_rms=False)


def add_rms_norm(x, residual, weight, eps):
    return _launch(x, residual, weight, None, eps, is_rms=True)
