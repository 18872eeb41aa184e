"""Launches every form twice: as ``quick`` does it and as Triton does it. Prints what differs.

Run by ``test_launch.py`` in a process of its own, without the interpreter and without a GPU: the
driver compiles for compute capability 9.0 and takes launches down instead of making them.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ostinato.kernels.launch import Launched, quick

taken: list[tuple[Any, ...]] = []


class _Utils:
    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        return object(), hash(kernel), 32, 0, 1024

    def unload_module(self, module: object) -> None:
        pass

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448}


class _Launcher:
    def __init__(self, source: object, metadata: object) -> None:
        pass

    def __call__(self, *args: Any) -> None:
        grid, stream, function, given = args[:3], args[3], args[4], args[9:]
        taken.append((grid, stream, function, *map(_told, given)))


def _told(value: Any) -> object:
    return value.data_ptr() if isinstance(value, torch.Tensor) else (type(value), value)


class NoDriver:
    """What Triton asks of a driver, answered for a card that is not there."""

    launcher_cls = _Launcher
    utils = _Utils()

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@quick
@triton.jit(do_not_specialize=["num_rows"])
def scale_kernel(
    x_pointer,  # type: ignore[no-untyped-def]
    y_pointer,
    num_rows,
    stride,
    factor,
    width: tl.constexpr,
    is_shifted: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, width)
    x = tl.load(x_pointer + row * stride + column, mask=row < num_rows, other=0.0).to(tl.float32)
    if is_shifted:
        x += 1.0
    tl.store(y_pointer + row * stride + column, x * factor, mask=row < num_rows)


def main() -> int:
    driver.set_active(NoDriver())
    assert isinstance(scale_kernel, Launched)
    flat = torch.zeros(4096)
    pointers = (flat, flat[1:], flat[4:], flat.bfloat16())
    sizes = product((3, 1 << 33), (1, 16, 17))
    cases = [
        ((x, flat, rows, stride, factor), {"width": width, "is_shifted": width == 16})
        for (rows, stride), x in product(sizes, pointers)
        for factor, width in ((0.5, 16), (2.0, 32))
    ]
    for grid in ((5,), (5, 2), (5, 2, 3)):
        for args, constants in [*cases, *cases]:
            options = {**constants, "num_warps": 1, "enable_fp_fusion": False}
            taken.clear()
            scale_kernel[grid](*args, **options)
            scale_kernel.jit[grid](*args, **options)
            if len(taken) != 2 or taken[0] != taken[1]:
                print(f"differs: {args[2:]} {constants} on {grid}: {taken}")
                return 1
    print(f"{len(cases)} cases, {len(scale_kernel._ready)} forms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
