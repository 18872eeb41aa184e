"""Elementary functions for kernels, the same ones that torch's CUDA kernels call.

``tl.exp`` is an approximation (ex2.approx); torch calls libdevice. Under the interpreter, which has
no libdevice, they are torch's CPU functions, so that a CPU test compares rounding points and not
two mathematical libraries. Imports triton: only ``triton.py`` files may import this module.
"""

# Triton's language is no Python that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)

if IS_INTERPRETED:

    def _by_torch(fn: Any) -> Any:
        from triton.runtime.interpreter import TensorHandle

        def apply(x: Any, *rest: Any) -> Any:
            inputs = [torch.from_numpy(a.handle.data.copy()) for a in (x, *rest)]
            return tl.tensor(TensorHandle(fn(*inputs).numpy(), x.handle.dtype), x.type)

        return apply

    exp = _by_torch(torch.exp)
    tanh = _by_torch(torch.tanh)
    erf = _by_torch(torch.erf)
    log = _by_torch(torch.log)

    def _rounded_once(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        product, added = x.double() * y.double(), z.double()  # the product is exact
        total = product + added
        taken = total - product
        error = (product - (total - taken)) + (added - taken)
        # Round to odd, so that rounding to fp32 afterwards is as if there had been one rounding.
        is_even = (total.view(torch.int64) & 1) == 0
        towards = torch.where(error > 0, torch.inf, -torch.inf).double()
        odd = torch.where(is_even & (error.abs() > 0), total.nextafter(towards), total)
        return odd.float()

    fma = _by_torch(_rounded_once)
    near_reciprocal = _by_torch(torch.reciprocal)

    @triton.jit
    def through_pairs(x, pointer):
        """``through`` for values that are not stored in that dtype afterwards."""
        return through(x, pointer)

    @triton.jit
    def rounded_pairs(x, pointer):
        """``x`` (fp32) as it is to be stored behind ``pointer``."""
        return x

    @triton.jit
    def modulated_pairs(x, scale, shift, pointer):
        """``(1 + scale) * x + shift`` in fp32, each step rounded to the dtype behind ``pointer``.

        ``x`` is fp32 and rounded first; scale and shift have that dtype. A product below 2^-126 may
        end a unit beside what torch gives, which rounds it twice.
        """
        return _modulated(x, scale, shift, pointer)

    @triton.jit
    def largest(x):
        """Largest absolute value of ``x`` (n,); NaN where there is one, as in torch."""
        # As integers NaN is larger than infinity. (A reduction by a function of ours takes
        # seconds under the interpreter.)
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        return tl.max(bits, axis=0).to(tl.float32, bitcast=True)
else:
    from triton.language.extra.cuda import libdevice

    @triton.jit
    def exp(x):
        return libdevice.exp(x)

    @triton.jit
    def tanh(x):
        return libdevice.tanh(x)

    @triton.jit
    def erf(x):
        return libdevice.erf(x)

    @triton.jit
    def log(x):
        return libdevice.log(x)

    @triton.jit
    def fma(x, y, z):
        return tl.fma(x, y, z)

    @triton.jit
    def near_reciprocal(x):
        """Off by a unit at most; what is denormal is zero."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def through_pairs(x, pointer):
        # Left alone, the compiler rounds each bf16 by itself, at a quarter of the speed.
        if pointer.dtype.element_ty == tl.bfloat16:
            return tl.inline_asm_elementwise(
                """
                {
                    .reg .b32 pair;
                    cvt.rn.bf16x2.f32 pair, $3, $2;
                    shl.b32 $0, pair, 16;
                    and.b32 $1, pair, 0xffff0000;
                }
                """,
                "=&r,=r,r,r",
                [x],
                dtype=tl.float32,
                is_pure=True,
                pack=2,
            )
        else:
            return through(x, pointer)

    @triton.jit
    def rounded_pairs(x, pointer):
        # One instruction for two values; a store by itself rounds one by one.
        if pointer.dtype.element_ty == tl.bfloat16:
            return tl.inline_asm_elementwise(
                "cvt.rn.bf16x2.f32 $0, $2, $1;",
                "=r,r,r",
                [x],
                dtype=tl.bfloat16,
                is_pure=True,
                pack=2,
            )
        else:
            return x

    @triton.jit
    def modulated_pairs(x, scale, shift, pointer):
        # Arithmetic of pairs rounds once, to bf16, as fp32 and a conversion do: fp32 has more than
        # twice the bits. FP8 modulation of 16,384 x 3,072: 47.3 us instead of 53.0 (H200).
        if pointer.dtype.element_ty == tl.bfloat16:
            return tl.inline_asm_elementwise(
                """
                {
                    .reg .b32 pair, factor, one, nothing;
                    mov.b32 one, 0x3f803f80;
                    mov.b32 nothing, 0x80008000;
                    cvt.rn.bf16x2.f32 pair, $3, $2;
                    fma.rn.bf16x2 factor, $4, one, one;
                    fma.rn.bf16x2 pair, factor, pair, nothing;
                    fma.rn.bf16x2 pair, pair, one, $5;
                    shl.b32 $0, pair, 16;
                    and.b32 $1, pair, 0xffff0000;
                }
                """,
                "=&r,=r,r,r,r,r",
                [x, scale, shift],
                dtype=tl.float32,
                is_pure=True,
                pack=2,
            )
        else:
            return _modulated(x, scale, shift, pointer)

    @triton.jit
    def _larger_or_nan(x, y):
        return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def largest(x):
        return tl.reduce(tl.abs(x), 0, _larger_or_nan)


@triton.jit
def divide(x, y):
    """IEEE division, as torch divides two tensors; the plain ``/`` is approximate on a GPU."""
    return tl.div_rn(x, y)


@triton.jit
def _corrected(quotient, x, y, reciprocal):
    """One step of Markstein's correction of ``quotient`` towards ``x / y``.

    The remainder is exact in a fused multiply-add. It is taken with the other sign, and so is the
    reciprocal: a remainder of zero then keeps the sign of a quotient of zero.
    """
    remainder = fma(quotient, y, x * -1.0)
    return fma(remainder, reciprocal * -1.0, quotient)


@triton.jit
def divide_row(x, y):
    """``x / y`` rounded as IEEE asks, ``y`` a positive scalar, without a branch per element.

    A GPU's own division is nine instructions and a branch each, which keeps elements from
    overlapping. Here the reciprocal is made once a row. It is correctly rounded, so the first
    correction leaves a quotient off by less than a unit and the second the correctly rounded one
    (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990,
    theorem 2; proved in Cornea, Harrison and Tang, "Scientific Computing on Itanium-based Systems",
    2002, chapter 8), as long as the remainder is exact and nothing leaves the normal numbers:
    1e-36 < y < 1e37, and ``x`` and the quotient beyond 1e-30. Smaller quotients are within a unit,
    or denormal, and have their sign. A zero is the quotient's own sign; y infinite gives zero and
    NaN (the factor of the remainder is then replaced by zero); NaN spreads.
    """
    reciprocal = divide(1.0, y)
    factor = tl.where(y == float("inf"), 0.0, y)
    factor = tl.broadcast_to(factor, x.shape)
    reciprocal = tl.broadcast_to(reciprocal, x.shape)
    quotient = _corrected(x * reciprocal, x, factor, reciprocal)
    return _corrected(quotient, x, factor, reciprocal)


@triton.jit
def divide_sigmoid(x, y):
    """``x / y`` rounded as IEEE asks, for ``y = 1 + exp(-z)`` and ``x`` either ``z`` or one.

    Approximate reciprocal, one step of Newton, two corrections as in ``divide_row``, no branch.
    Where y is large, x and y are scaled by a power of two first, so that no reciprocal is denormal.
    Infinite x or y make the corrections NaN; the uncorrected quotient is then right. For results
    that are rounded to 16 bits: with a significand of all ones in y, the step of Newton may end
    one unit off (Markstein), which shows in fp32 at x = 2^-23.
    """
    by = tl.where(y > 1.8446744073709552e19, 5.421010862427522e-20, 1.0)
    x *= by
    y *= by
    near = near_reciprocal(y)
    one = tl.full(y.shape, 1.0, tl.float32)
    reciprocal = fma(fma(near * -1.0, y, one), near, near)
    quotient = _corrected(x * reciprocal, x, y, reciprocal)
    quotient = _corrected(quotient, x, y, reciprocal)
    return tl.where(is_nan(quotient), x * near, quotient)


@triton.jit
def through(x, pointer):
    """Round fp32 ``x`` to the dtype that ``pointer`` points to, and back to fp32."""
    return x.to(pointer.dtype.element_ty).to(tl.float32)


@triton.jit
def _modulated(x, scale, shift, pointer):
    factor = through(1.0 + scale.to(tl.float32), pointer)
    product = through(factor * through(x, pointer), pointer)
    return through(product + shift.to(tl.float32), pointer)


@triton.jit
def is_nan(x):
    return x != x  # noqa: PLR0124
