"""What holds for all operators at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from ostinato.kernels.op import registered
from ostinato.kernels.workloads import OPERATOR_PACKAGES, workloads

PACKAGE = Path(__file__).parents[2] / "src" / "ostinato" / "kernels"


def test_importing_every_operator_loads_no_kernel_and_touches_no_gpu() -> None:
    code = f"""
import importlib, sys, torch
for name in {OPERATOR_PACKAGES}:
    importlib.import_module("ostinato.kernels." + name)
loaded = [m for m in sys.modules if m.startswith("ostinato.kernels") and "triton" in m]
assert not loaded, loaded
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parents[1])


def test_every_operator_has_workloads_and_every_package_is_listed() -> None:
    every = list(workloads(rows=64, dtype=torch.bfloat16, device="meta"))
    assert {w.operator.name for w in every} == {op.name for op in registered()}
    folders = {path.parent.name for path in PACKAGE.glob("*/triton.py")}
    assert folders - {"segment_attention"} == set(OPERATOR_PACKAGES)


def test_workloads_count_each_byte_once() -> None:
    sizes = {
        (w.operator.name, w.label): w.num_bytes()
        for w in workloads(rows=64, dtype=torch.bfloat16, device="meta")
    }
    assert sizes["layer_norm", "256"] == 2 * (2 * 64 * 256 + 2 * 256)
    assert sizes["swiglu", "2x704 silu"] == 2 * (3 * 64 * 704)
    assert sizes["fp8_quantize", "1152"] == 64 * (2 * 1152 + 1152 + 4)
    # Keys, values and both caches, which are written whole, and the slots.
    assert sizes["paged_cache_write", "8x128"] == 2 * 4 * 64 * 1024 + 8 * 64
    assert all(size > 0 for size in sizes.values())


def test_the_table_in_the_readme_names_every_operator() -> None:
    text = (PACKAGE / "README.md").read_text()
    for operator in registered():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{operator.name}`"))
        assert f"| {operator.exactness}" in row, row
