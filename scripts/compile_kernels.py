"""Compiles every kernel configuration for every supported card, without a GPU.

    python scripts/compile_kernels.py [--jobs N] [--only NAME] [--all]

Launches are taken down on the meta device instead of being made; each is then compiled for compute
capability 8.0, 8.6, 8.9, 9.0 and 12.0, and its shared memory held against the card's limit.
It runs nothing, so it says nothing about answers or speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

SIZES = ((3136, 8, 3136), (3136, 49, 64), (3136, 80, 3136), (196, 1, 196), (3136, 1, 3136))
"""Rows, segments and longest segment of attention: every way to map programs to rows."""
# Bytes of shared memory that one block may ask for (CUDA programming guide, opt-in limit).
SHARED_LIMITS = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}
DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
}
ROWS = 4096


@dataclass(frozen=True)
class Launch:
    """One kernel launch: enough to compile it in another process."""

    label: str
    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]


def launches(dtype: torch.dtype, capability: int, only: str | None, *, thin: bool) -> list[Launch]:
    """Every distinct launch that the workloads make for a card, taken down on the meta device."""
    from ostinato.kernels.card import assuming
    from ostinato.kernels.workloads import widest, workloads

    every = list(workloads(rows=ROWS, dtype=dtype, device="meta"))
    with Notes() as notes, assuming(divmod(capability, 10)):
        for workload in widest(every) if thin else every:
            notes.label = f"{workload.operator.name} {workload.label} {DTYPES[dtype]}"
            if only is None or only in notes.label:
                workload.operator.kernel(*workload.args)
    return list(notes.found.values())


def attention_launches(
    dtype: torch.dtype, capability: int, only: str | None, *, thin: bool
) -> list[Launch]:
    """Launches of segment attention, whose tiles are chosen by card."""
    from ostinato.kernels.card import assuming
    from ostinato.kernels.segment_attention.backends import TRITON
    from ostinato.kernels.segment_attention.call import Call

    with Notes() as notes, assuming(divmod(capability, 10)):
        for head_dim in (72, 128) if thin else (32, 64, 72, 80, 96, 128, 160, 256):
            for rows, segments, longest in SIZES[:2] if thin else SIZES:
                notes.label = f"segment_attention {rows} in {segments}, {head_dim} {DTYPES[dtype]}"
                q, k, v = torch.empty(rows, 3, 16, head_dim, dtype=dtype, device="meta").unbind(1)
                offsets = torch.empty(segments + 1, dtype=torch.int32, device="meta")
                if only is None or only in notes.label:
                    TRITON.attend(Call(q, k, v, offsets, longest, 0.1), None)
    return list(notes.found.values())


class Notes:
    """Takes launches down instead of making them; ``label`` names what is being launched."""

    def __init__(self) -> None:
        self.label = ""
        self.found: dict[tuple[Any, ...], Launch] = {}

    def __enter__(self) -> Notes:
        import triton

        from ostinato.kernels.launch import Launched

        notes = self

        def take_down(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            launch = describe(self, notes.label, args, kwargs)
            key = (launch.module, launch.kernel, launch.signature, launch.constants, launch.options)
            notes.found.setdefault(key, launch)

        self._run = triton.runtime.jit.JITFunction.run
        triton.runtime.jit.JITFunction.run = take_down
        self._quick = Launched.__getitem__
        Launched.__getitem__ = lambda kernel, grid: kernel.jit[grid]  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        import triton

        from ostinato.kernels.launch import Launched

        triton.runtime.jit.JITFunction.run = self._run
        Launched.__getitem__ = self._quick  # type: ignore[method-assign]


def describe(kernel: Any, label: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    """Sort a launch's arguments into signature, constants and compile options."""
    names = [p.name for p in kernel.params]
    options = {k: v for k, v in kwargs.items() if k not in names}
    values = dict(zip(names, args, strict=False)) | {k: kwargs[k] for k in names if k in kwargs}
    signature, constants = {}, {}
    for parameter in kernel.params:
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + DTYPES[value.dtype]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    return Launch(
        label,
        kernel.fn.__module__,
        kernel.fn.__name__,
        tuple(signature.items()),
        tuple(constants.items()),
        tuple(sorted(options.items())),
    )


def compile_for(launch: Launch, capability: int) -> str:
    """Why ``launch`` cannot run on that card, or ""."""
    from importlib import import_module

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module(launch.module), launch.kernel).jit
    signature = dict(launch.signature)
    # Torch's allocations start at multiples of 512 bytes; operators keep misaligned views apart.
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, t in enumerate(signature.values()) if t[0] == "*"
    }
    source = ASTSource(kernel, signature, dict(launch.constants), aligned)
    try:
        compiled = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options)
        )
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    shared = compiled.metadata.shared
    limit = SHARED_LIMITS[capability]
    return (
        f"asks for {shared} bytes of shared memory, the card has {limit}" if shared > limit else ""
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="only workloads whose label contains this")
    parser.add_argument("--all", action="store_true", help="every width, and fp32 as well")
    options = parser.parse_args()
    begin = time.perf_counter()
    dtypes = [torch.bfloat16, torch.float32] if options.all else [torch.bfloat16]
    how = {"only": options.only, "thin": not options.all}
    jobs = [
        (launch, capability)
        for capability in SHARED_LIMITS
        for dtype in dtypes
        for take_down in (launches, attention_launches)
        for launch in take_down(dtype, capability, **how)
    ]
    if not jobs:
        print(f"nothing is named {options.only!r}")
        return 1
    with ProcessPoolExecutor(options.jobs) as pool:
        reasons = list(pool.map(compile_for, *zip(*jobs, strict=True), chunksize=4))
    failures = [(job, reason) for job, reason in zip(jobs, reasons, strict=True) if reason]
    for (launch, capability), reason in failures:
        print(f"FAIL {launch.label} on {capability / 10}: {reason}")
    seconds = time.perf_counter() - begin
    print(
        f"{len(jobs)} configurations on {len(SHARED_LIMITS)} cards: "
        f"{len(failures)} failures, {seconds:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
