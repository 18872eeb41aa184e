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
    fma = _by_torch(lambda x, y, z: (x.double() * y.double() + z.double()).float())
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
def divide(x, y):
    """IEEE division, as torch divides two tensors; the plain ``/`` is approximate on a GPU."""
    return tl.div_rn(x, y)


@triton.jit
def through(x, pointer):
    """Round fp32 ``x`` to the dtype that ``pointer`` points to, and back to fp32."""
    return x.to(pointer.dtype.element_ty).to(tl.float32)


@triton.jit
def is_nan(x):
    return x != x  # noqa: PLR0124
