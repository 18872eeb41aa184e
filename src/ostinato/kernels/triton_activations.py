"""The activations of ``activations.py`` in fp32, operation by operation as torch's CUDA kernels.

nvcc contracts ``x + 0.044715 * x^3`` to one fused multiply-add, so it is spelled out here; nothing
else is contracted (kernels run with enable_fp_fusion=False). Only ``triton.py`` files import this.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ostinato.kernels.triton_math import (
    divide,
    divide_sigmoid,
    erf,
    exp,
    fma,
    near_reciprocal,
    tanh,
    through,
    through_pairs,
)


@triton.jit
def activate(x, pointer, name: tl.constexpr):
    """``x`` (fp32) activated and rounded to the dtype behind ``pointer``, returned as fp32."""
    return through(activated(x, pointer, name), pointer)


@triton.jit
def activated(x, pointer, name: tl.constexpr):
    """The same before the last rounding."""
    if name == "silu":
        y = _divide(x, 1.0 + exp(-x), pointer)
    elif name == "gelu_tanh":
        cube = x * x * x
        inner = 0.7978845608028654 * fma(tl.full(x.shape, 0.044715, tl.float32), cube, x)
        y = 0.5 * x * (1.0 + tanh(inner))
    elif name == "gelu_erf":
        y = x * 0.5 * (1.0 + erf(x * 0.7071067811865476))
    else:
        scaled = through_pairs(1.702 * x, pointer)
        one = tl.full(x.shape, 1.0, tl.float32)
        y = x * through_pairs(_divide(one, 1.0 + exp(-scaled), pointer), pointer)
    return y


@triton.jit
def activated_nearly(x, pointer, name: tl.constexpr):
    """``activated`` for close operators, in half of the work or less.

    0.5 (1 + tanh z) is 1 / (1 + exp(-2 z)), here by the card's exp2 and reciprocal: a relative
    error of some fp32 units of max(1, |z|). tanh itself is off by more where 1 + tanh cancels.
    """
    if name == "gelu_tanh":
        inner = fma(tl.full(x.shape, 0.044715, tl.float32), x * x * x, x)
        return x * near_reciprocal(1.0 + tl.exp2(inner * -2.302208198144325))
    elif name == "gelu_erf":
        return x * _normal_below(x)
    else:
        return activated(x, pointer, name)


@triton.jit
def _normal_below(x):
    """0.5 (1 + erf(x / sqrt(2))), off by 1e-7 (Abramowitz and Stegun, 7.1.26), without a branch.

    Below zero it is a product, not a difference: no digits cancel.
    """
    size = tl.abs(x) * 0.7071067811865476
    t = near_reciprocal(1.0 + size * 0.3275911)
    y = _times_plus(tl.full(x.shape, 1.061405429, tl.float32), t, -1.453152027)
    y = _times_plus(_times_plus(_times_plus(y, t, 1.421413741), t, -0.284496736), t, 0.254829592)
    above = 0.5 * (y * t) * tl.exp2(size * size * -1.4426950408889634)
    return tl.where(x < 0.0, above, 1.0 - above)


@triton.jit
def _times_plus(x, y, constant: tl.constexpr):
    return fma(x, y, tl.full(x.shape, constant, tl.float32))


@triton.jit
def _divide(x, y, pointer):
    if pointer.dtype.element_ty == tl.float32:
        return divide(x, y)
    else:
        return divide_sigmoid(x, y)
