"""One program quantises a row in registers, after computing it where it is not given.

A row is two tiles whose widths are powers of two, so that few lanes idle: 1152 is 1024 + 128. E4M3
bits are made by the card where it converts (compute capability 8.9 and newer), else with integers:
exact on every card and under the interpreter.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ostinato.kernels.card import capability_of
from ostinato.kernels.fp8.reference import DTYPE, ROW_MULTIPLE
from ostinato.kernels.fp8.tiles import row_tiles
from ostinato.kernels.launch import quick
from ostinato.kernels.modulate.triton import segment_of
from ostinato.kernels.rowwise import ceil_div
from ostinato.kernels.swiglu.triton import gated
from ostinato.kernels.tiles import measured
from ostinato.kernels.triton_activations import activated_nearly
from ostinato.kernels.triton_math import (
    IS_INTERPRETED,
    divide,
    divide_row,
    largest,
    modulated_pairs,
    through,
    through_pairs,
)

_CONVERTS = (8, 9)
"""Compute capability from which the card converts to E4M3."""


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
def e4m3_converted(x):
    """The same by the card, for any fp32 ``x``: nearest, ties to even, saturating.

    Spelled out because ``x.to(tl.float8e4nv)`` rounds twice, by way of fp16, on 8.9.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 low, high;
            cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
            cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
            mov.b32 $0, {low, high};
        }
        """,
        "=r,f,f,f,f",
        [x],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _given(x_pointer, residual_pointer, bias_pointer, total_pointer, row, column, is_inside,
           x_stride: tl.constexpr, residual_stride: tl.constexpr, width: tl.constexpr,
           before: tl.constexpr, activation: tl.constexpr, has_residual: tl.constexpr,
           has_bias: tl.constexpr):  # fmt: skip
    """A tile of fp32 values before the norm, if there is one; writes the residual sum."""
    x_row = x_pointer + row * x_stride
    if before == "swiglu":
        x = gated(x_row, bias_pointer, column, is_inside, width, activation, has_bias, x_pointer)
    else:
        x = tl.load(x_row + column, mask=is_inside, other=0.0).to(tl.float32)
    if before == "gelu":
        if has_bias:
            bias = tl.load(bias_pointer + column, mask=is_inside, other=0.0).to(tl.float32)
            x = through(x + bias, x_pointer)
        x = through_pairs(activated_nearly(x, x_pointer, activation), x_pointer)
    if has_residual:
        other = tl.load(
            residual_pointer + row * residual_stride + column, mask=is_inside, other=0.0
        )
        x = through(x + other.to(tl.float32), x_pointer)
        tl.store(total_pointer + row * width + column, x, mask=is_inside)
    return x


@triton.jit
def _affine(weight_pointer, bias_pointer, segment, column, is_inside, weight_stride: tl.constexpr,
            bias_stride: tl.constexpr, has_weight: tl.constexpr,
            has_bias: tl.constexpr):  # fmt: skip
    """What a norm multiplies with and adds, of a tile; loaded before the sums, which take long."""
    weight = column
    bias = column
    if has_weight:
        weight = tl.load(weight_pointer + segment * weight_stride + column, mask=is_inside, other=0)
    if has_bias:
        bias = tl.load(bias_pointer + segment * bias_stride + column, mask=is_inside, other=0)
    return weight, bias


@triton.jit
def _normed(x, inverse, weight, bias, x_pointer, before: tl.constexpr, has_weight: tl.constexpr,
            has_bias: tl.constexpr):  # fmt: skip
    """``x * inverse`` with what follows, rounded where ``norm`` and ``modulate`` round.

    A modulation's last sum is rounded too.
    """
    y = x * inverse
    if before == "modulate":
        return modulated_pairs(y, weight, bias, x_pointer)
    else:
        if before == "rms":
            y = through_pairs(y, x_pointer)
        if has_weight:
            y *= weight.to(tl.float32)
        if has_bias:
            y += bias.to(tl.float32)
        return y


@triton.jit
def _inside(column, end: tl.constexpr, width: tl.constexpr):
    """Which columns are inside the row; a constant where all of a tile's are, up to ``end``."""
    if end <= width:
        return tl.full(column.shape, 1, tl.int1)
    else:
        return column < width


@triton.jit
def _store(x, scale, pointers, is_inside, is_exact: tl.constexpr, is_converted: tl.constexpr):
    y = divide_row(x, scale) if is_exact else x * divide(1.0, scale)
    if is_converted:
        bits = e4m3_converted(y)
    else:
        bits = e4m3_bits(tl.where(y > 448.0, 448.0, tl.where(y < -448.0, -448.0, y)))
    tl.store(pointers, bits, mask=is_inside)


@quick
@triton.jit(do_not_specialize=["num_rows"])
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
    is_converted: tl.constexpr,
    main_columns: tl.constexpr,
    rest_columns: tl.constexpr,
):
    """``before`` is nothing, layer, rms, modulate, gelu or swiglu.

    Of a modulation, weight and bias are scale and shift. Rounding goes through x's dtype. The
    second tile ``b`` is there where ``rest_columns`` is not 0.
    """
    row = tl.program_id(0).to(tl.int64)
    a_column = tl.arange(0, main_columns)
    a_inside = _inside(a_column, main_columns, width)
    if row >= num_rows:
        nothing = tl.zeros([main_columns], tl.uint8)
        tl.store(values_pointer + row * width + a_column, nothing, mask=a_inside)
        if rest_columns:
            b_column = main_columns + tl.arange(0, rest_columns)
            nothing = tl.zeros([rest_columns], tl.uint8)
            tl.store(values_pointer + row * width + b_column, nothing, mask=b_column < width)
        tl.store(scales_pointer + row, 1e-12)
        return
    a = _given(x_pointer, residual_pointer, bias_pointer, total_pointer, row, a_column, a_inside,
               x_stride, residual_stride, width, before, activation, has_residual,
               has_bias)  # fmt: skip
    if rest_columns:
        b_column = main_columns + tl.arange(0, rest_columns)
        b_inside = _inside(b_column, main_columns + rest_columns, width)
        b = _given(x_pointer, residual_pointer, bias_pointer, total_pointer, row, b_column,
                   b_inside, x_stride, residual_stride, width, before, activation, has_residual,
                   has_bias)  # fmt: skip
    has_norm: tl.constexpr = before == "layer" or before == "modulate" or before == "rms"  # noqa: PLR1714
    if has_norm:
        segment = segment_of(segments_pointer, row, num_rows, has_segments)
        a_weight, a_bias = _affine(weight_pointer, bias_pointer, segment, a_column, a_inside,
                                   weight_stride, bias_stride, has_weight, has_bias)  # fmt: skip
        if rest_columns:
            b_weight, b_bias = _affine(weight_pointer, bias_pointer, segment, b_column, b_inside,
                                       weight_stride, bias_stride, has_weight,
                                       has_bias)  # fmt: skip
    if before == "layer" or before == "modulate":  # noqa: PLR1714  (Triton knows no `in`)
        total = tl.sum(a, axis=0)
        if rest_columns:
            total += tl.sum(b, axis=0)
        mean = total / width
        a = tl.where(a_inside, a - mean, 0.0)
        if rest_columns:
            b = tl.where(b_inside, b - mean, 0.0)
    if has_norm:
        squares = tl.sum(a * a, axis=0)
        if rest_columns:
            squares += tl.sum(b * b, axis=0)
        inverse = tl.rsqrt(squares / width + eps)
        a = _normed(a, inverse, a_weight, a_bias, x_pointer, before, has_weight, has_bias)
        if rest_columns:
            b = _normed(b, inverse, b_weight, b_bias, x_pointer, before, has_weight, has_bias)
    # Columns beyond the width count as zero, whatever came out for them.
    is_rounded: tl.constexpr = before == "gelu" or before == "modulate"  # noqa: PLR1714
    if not is_rounded:
        a = through_pairs(a, x_pointer)
    a = tl.where(a_inside, a, 0.0)
    amax = largest(a)
    if rest_columns:
        if not is_rounded:
            b = through_pairs(b, x_pointer)
        b = tl.where(b_inside, b, 0.0)
        amax = tl.maximum(amax, largest(b), propagate_nan=tl.PropagateNan.ALL)
    scale = amax * 0.002232142857142857
    scale = tl.where(scale < 1e-12, 1e-12, scale)
    is_exact: tl.constexpr = before == "nothing" or before == "swiglu"  # noqa: PLR1714
    _store(a, scale, values_pointer + row * width + a_column, a_inside, is_exact, is_converted)
    if rest_columns:
        _store(b, scale, values_pointer + row * width + b_column, b_inside, is_exact, is_converted)
    tl.store(scales_pointer + row, scale)


def _launch(name, x, *, before, residual=None, weight=None, bias=None, segments=None, activation="",
            eps=0.0):  # fmt: skip
    num_rows = x.shape[0]
    width = x.shape[1] // 2 if before == "swiglu" else x.shape[1]
    num_padded = ceil_div(num_rows, ROW_MULTIPLE) * ROW_MULTIPLE
    values = x.new_empty((num_padded, width), dtype=torch.uint8)
    scales = x.new_empty((num_padded, 1), dtype=torch.float32)
    total = x.new_empty((num_rows, width)) if residual is not None else None
    tiles = row_tiles(width)
    best = measured(name, width)
    quantize_kernel[(num_padded,)](
        x,
        residual if residual is not None else x,
        weight if weight is not None else x,
        bias if bias is not None else x,
        segments.contiguous() if segments is not None else x,
        total if total is not None else x,
        values,
        scales,
        num_rows,
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
        is_converted=capability_of(x.device) >= _CONVERTS and not IS_INTERPRETED,
        main_columns=tiles.main,
        rest_columns=tiles.rest,
        num_warps=tiles.num_warps if best is None else best.warps,
        enable_fp_fusion=False,
    )
    values = values.view(DTYPE)
    return (values, scales) if total is None else (values, scales, total)


def fp8_quantize(x):
    return _launch("fp8_quantize", x, before="nothing")


def fp8_norm(x, weight, bias, eps, kind):
    return _launch("fp8_norm", x, before=kind, weight=weight, bias=bias, eps=eps)


def fp8_add_norm(x, residual, weight, bias, eps, kind):
    return _launch(
        "fp8_add_norm", x, before=kind, residual=residual, weight=weight, bias=bias, eps=eps
    )


def fp8_modulate(x, scale, shift, segments, eps):
    scale, shift = (t if t.stride(1) == 1 else t.contiguous() for t in (scale, shift))
    return _launch(
        "fp8_modulate", x, before="modulate", weight=scale, bias=shift, segments=segments, eps=eps
    )


def fp8_gelu(x, bias, activation):
    return _launch("fp8_gelu", x, before="gelu", bias=bias, activation=activation)


def fp8_swiglu(packed, bias, activation):
    return _launch("fp8_swiglu", packed, before="swiglu", bias=bias, activation=activation)
