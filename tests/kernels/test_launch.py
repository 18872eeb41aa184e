"""A launch that skips Triton's binding passes on what Triton would, to the kernel it would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from ostinato.kernels import launch

ROOT = Path(__file__).resolve().parents[2]


def test_every_form_reaches_the_kernel_that_triton_chooses_with_its_arguments() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.launches"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Two of the four pointers are aligned alike.
    assert done.stdout.strip() == "48 cases, 36 forms"


def test_under_the_interpreter_a_kernel_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    kernel = triton.jit(_kernel)
    assert launch.quick(kernel) is kernel


def _kernel(pointer):  # type: ignore[no-untyped-def]
    pass
