"""One program quantises whole rows in registers, after computing them where they are not given.

E4M3 bits are made with integers: exact on every card, also on those without FP8 conversions, and
under the interpreter.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.fp8.reference import DTYPE, ROW_MULTIPLE
from ostinato.kernels.modulate.triton import modulated
from ostinato.kernels.norm.triton import normalised
from ostinato.kernels.rowwise import whole_row_tile
from ostinato.kernels.swiglu.triton import gated
from ostinato.kernels.triton_activations import activate
from ostinato.kernels.triton_math import divide, is_nan, through


@triton.jit
def e4m3_bits(x):
    """uint8 E4M3 of fp32 ``x`` in [-448, 448] or NaN: nearest, ties to even."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    # Below 2^-6 the step is 2^-9, which is the step of fp32 at 2^14: adding 2^14 rounds.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    # Above, drop 20 of 23 mantissa bits, ties to even; the exponent's bias goes from 127 to 7.
    normal = (size + 0x7FFFF + ((size >> 20) & 1) - 0x3C000000) >> 20
    code = tl.where(size < 0x3C800000, small, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | sign).to(tl.uint8)


@triton.jit
def _largest(x):
    """Largest absolute value of each row (rows, 1); NaN where the row has one, as in torch."""
    largest = tl.max(tl.where(is_nan(x), 0.0, tl.abs(x)), axis=1)[:, None]
    has_nan = tl.max(is_nan(x).to(tl.int32), axis=1)[:, None]
    return tl.where(has_nan > 0, float("nan"), largest)


@triton.jit(do_not_specialize=["num_rows", "num_padded"])
def quantize_kernel(
    x_pointer,
    residual_pointer,
    weight_pointer,
    bias_pointer,
    segments_pointer,
    total_pointer,
    values_pointer,
    scales_pointer,
    num_rows,
    num_padded,
    eps,
    x_stride: tl.constexpr,
    residual_stride: tl.constexpr,
    weight_stride: tl.constexpr,
    bias_stride: tl.constexpr,
    width: tl.constexpr,
    before: tl.constexpr,
    activation: tl.constexpr,
    has_residual: tl.constexpr,
    has_weight: tl.constexpr,
    has_bias: tl.constexpr,
    has_segments: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """``before`` is nothing, layer, rms, modulate, gelu or swiglu.

    Of a modulation, weight and bias are scale and shift. Rounding goes through x's dtype.
    """
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)[:, None]
    column = tl.arange(0, tile_columns)[None, :]
    is_inside = (row < num_rows) & (column < width)
    x_row = x_pointer + row * x_stride
    if before == "swiglu":
        x = gated(x_row, bias_pointer, column, is_inside, width, activation, has_bias, x_pointer)
    else:
        x = tl.load(x_row + column, mask=is_inside, other=0.0).to(tl.float32)
    if has_residual:
        other = tl.load(
            residual_pointer + row * residual_stride + column, mask=is_inside, other=0.0
        )
        x = through(x + other.to(tl.float32), x_pointer)
        tl.store(total_pointer + row * width + column, x, mask=is_inside)
    if before == "layer" or before == "rms":  # noqa: PLR1714  (Triton knows no `in`)
        x = normalised(x, is_inside, column, weight_pointer, bias_pointer, x_pointer, eps, width,
                       before == "rms", has_weight, has_bias)  # fmt: skip
    elif before == "modulate":
        x = modulated(x, is_inside, row, column, weight_pointer, bias_pointer, segments_pointer,
                      x_pointer, num_rows, eps, weight_stride, bias_stride, width,
                      has_segments)  # fmt: skip
    elif before == "gelu":
        if has_bias:
            bias = tl.load(bias_pointer + column, mask=column < width, other=0.0).to(tl.float32)
            x = through(x + bias, x_pointer)
        x = activate(x, x_pointer, activation)
    # Rows beyond the input and columns beyond the width count as zero, whatever came out for them.
    x = tl.where(is_inside, through(x, x_pointer), 0.0)
    scale = _largest(x) * 0.002232142857142857
    scale = tl.where(scale < 1e-12, 1e-12, scale)
    y = divide(x, tl.broadcast_to(scale, x.shape))
    y = tl.where(y > 448.0, 448.0, tl.where(y < -448.0, -448.0, y))
    is_written = row < num_padded
    tl.store(
        values_pointer + row * width + column, e4m3_bits(y), mask=is_written & (column < width)
    )
    tl.store(scales_pointer + row, scale, mask=is_written)


def _launch(x, *, before, residual=None, weight=None, bias=None, segments=None, activation="",
            eps=0.0):  # fmt: skip
    num_rows = x.shape[0]
    width = x.shape[1] // 2 if before == "swiglu" else x.shape[1]
    num_padded = triton.cdiv(num_rows, ROW_MULTIPLE) * ROW_MULTIPLE
    values = x.new_empty((num_padded, width), dtype=torch.uint8)
    scales = x.new_empty((num_padded, 1), dtype=torch.float32)
    total = x.new_empty((num_rows, width)) if residual is not None else None
    tile_rows, tile_columns, warps = whole_row_tile(width)
    quantize_kernel[(triton.cdiv(num_padded, tile_rows),)](
        x,
        residual if residual is not None else x,
        weight if weight is not None else x,
        bias if bias is not None else x,
        segments.contiguous() if segments is not None else x,
        total if total is not None else x,
        values,
        scales,
        num_rows,
        num_padded,
        eps,
        x_stride=x.stride(0),
        residual_stride=residual.stride(0) if residual is not None else 0,
        weight_stride=weight.stride(0) if before == "modulate" else 0,
        bias_stride=bias.stride(0) if before == "modulate" else 0,
        width=width,
        before=before,
        activation=activation,
        has_residual=residual is not None,
        has_weight=weight is not None,
        has_bias=bias is not None,
        has_segments=segments is not None,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        num_warps=warps,
        enable_fp_fusion=False,
    )
    values = values.view(DTYPE)
    return (values, scales) if total is None else (values, scales, total)


def fp8_quantize(x):
    return _launch(x, before="nothing")


def fp8_norm(x, weight, bias, eps, kind):
    return _launch(x, before=kind, weight=weight, bias=bias, eps=eps)


def fp8_add_norm(x, residual, weight, bias, eps, kind):
    return _launch(x, before=kind, residual=residual, weight=weight, bias=bias, eps=eps)


def fp8_modulate(x, scale, shift, segments, eps):
    scale, shift = (t if t.stride(1) == 1 else t.contiguous() for t in (scale, shift))
    return _launch(x, before="modulate", weight=scale, bias=shift, segments=segments, eps=eps)


def fp8_gelu(x, bias, activation):
    return _launch(x, before="gelu", bias=bias, activation=activation)


def fp8_swiglu(packed, bias, activation):
    return _launch(packed, before="swiglu", bias=bias, activation=activation)
