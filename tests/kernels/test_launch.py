"""A launch that skips Triton's binding passes on what Triton would, to the kernel it would."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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


def _begins_by_waiting(kernel: ast.FunctionDef) -> bool:
    body = kernel.body[1:] if ast.get_docstring(kernel) is not None else kernel.body
    return ast.unparse(body[0]) == "await_inputs()"


def _decorated(name: str) -> list[tuple[str, ast.FunctionDef]]:
    return [
        (f"{path.parent.name}.{node.name}", node)
        for path in sorted((ROOT / "src/ostinato/kernels").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == name for decorator in node.decorator_list)
    ]


def test_what_is_launched_early_waits_before_it_reads_or_writes() -> None:
    """An early launch without the wait is a race that no test of values needs to notice."""
    overlapping = _decorated("overlapping")
    assert len(overlapping) >= 16
    assert [name for name, node in overlapping if not _begins_by_waiting(node)] == []


@pytest.mark.parametrize(
    ("is_overlapping", "capability", "options"),
    [(True, (9, 0), {"launch_pdl": True}), (True, (8, 9), {}), (False, (9, 0), {})],
)
def test_only_cards_that_can_are_asked_to_launch_early(
    is_overlapping: bool,
    capability: tuple[int, int],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []

    class Kernel:
        params = (SimpleNamespace(name="x", is_constexpr=False, do_not_specialize=False),)

        def __getitem__(self, grid: object) -> Any:
            return lambda *args, **given: seen.append(given)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: 0))
    monkeypatch.setattr(launch, "driver", driver)
    launch.Launched(Kernel(), is_overlapping=is_overlapping)[(1,)](1.0, num_warps=4)
    assert seen == [{"num_warps": 4, **options}]
