"""Launches of a kernel without Triton's own binding, once a form of arguments has been seen.

Triton sorts and describes all arguments of every launch, which takes longer on the host than most
kernels here take on the device. What it looks at is a small tuple (the *form*); a form that was
launched before goes straight to the kernel that Triton compiled for it, by the launcher that a
compiled kernel hands out. Under the interpreter kernels stay as they are. Debug switches of Triton
are read at the first launch of a form only; its launch hooks are always called.
"""

# Triton's types are none that mypy knows.
# mypy: ignore-errors

from __future__ import annotations

from functools import partial

from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

MAX_FORMS = 16_384
"""Forms hold exact sizes where a kernel is compiled for them; beyond so many all are forgotten."""

_BY_VALUE, _BY_WIDTH, _BY_TYPE = range(3)


def quick(kernel):
    """Decorate a kernel that is launched from the host, above ``triton.jit``."""
    return Launched(kernel) if isinstance(kernel, JITFunction) else kernel


class Launched:
    """``kernel[grid](*args, **constants)`` as Triton's own; ``jit`` is the kernel itself.

    Tensors are given by position, in the order of the kernel's parameters, without gaps. A call
    site gives a parameter one Python type always: 1 and True are one form.
    """

    def __init__(self, kernel):
        self.jit = kernel
        self._names = [p.name for p in kernel.params]
        self._kinds = [
            _BY_VALUE if p.is_constexpr else _BY_WIDTH if p.do_not_specialize else _BY_TYPE
            for p in kernel.params
        ]
        self._ready = {}

    def __getitem__(self, grid):
        return partial(self._launch, grid)

    def _launch(self, grid, *args, **constants):
        device = driver.active.get_current_device()
        form = [device, *constants.values()]
        for value, kind in zip(args, self._kinds, strict=False):
            if isinstance(value, Tensor):
                form += (value.dtype, value.data_ptr() & 15)
            elif kind == _BY_VALUE:
                form.append(value)
            elif isinstance(value, float):
                form.append(float)
            elif kind == _BY_WIDTH:
                form.append(value.bit_length() // 32)
            else:
                form.append(value)
        form = tuple(form)
        ready = self._ready.get(form)
        if ready is None:
            self._first(form, grid, args, constants)
            return
        compiled, rest = ready
        stream = driver.active.get_current_stream(device)
        compiled[(*grid, 1, 1)](*args, *rest, stream=stream)

    def _first(self, form, grid, args, constants):
        compiled = self.jit[grid](*args, **constants)
        given = self._names[len(args) :]
        if not isinstance(compiled, CompiledKernel) or any(name not in constants for name in given):
            return
        if len(self._ready) >= MAX_FORMS:
            self._ready.clear()
        self._ready[form] = (compiled, tuple(constants[name] for name in given))
