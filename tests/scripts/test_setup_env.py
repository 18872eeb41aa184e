"""Which constraints a machine gets, and when the environment is made again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """A script as a module; scripts/ is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


setup_env = load("setup_env")
Gpu = setup_env.nvidia.Gpu


@pytest.mark.parametrize(
    ("device", "driver", "expected"),
    [
        ("auto", None, "constraints-cpu.txt"),
        ("cpu", "580.1", "constraints-cpu.txt"),
        ("cpu", "470.1", "constraints-cpu.txt"),
        ("auto", "580.159", "constraints-gpu.txt"),
        ("cuda", "595.58", "constraints-gpu.txt"),
    ],
)
def test_constraints_follow_the_driver(device: str, driver: str | None, expected: str) -> None:
    gpu = Gpu("Card", driver) if driver else None
    assert setup_env.pick_constraints(device, gpu) == expected


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_an_old_driver_is_an_error_with_both_versions(device: str) -> None:
    with pytest.raises(SystemExit, match=r"driver 535\.1, needed 580 or newer"):
        setup_env.pick_constraints(device, Gpu("Card", "535.1"))


def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(SystemExit, match="driver unknown, needed 580"):
        setup_env.pick_constraints("auto", Gpu("Card", None))


def test_cuda_without_a_gpu_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no NVIDIA GPU is visible"):
        setup_env.pick_constraints("cuda", None)


def test_a_torch_that_cannot_use_the_gpu_is_an_error(tmp_path: Path) -> None:
    """An interpreter whose torch fails on the GPU, as a CPU build does."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\necho '12.1|driver too old'\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match=r"driver 580\.1, needed 580 .*CUDA 12\.1.*\n.*too old"):
        setup_env.check_cuda(tmp_path, Gpu("Card", "580.1"))
    python.write_text("#!/bin/sh\nexit 0\n")
    setup_env.check_cuda(tmp_path, Gpu("Card", "580.1"))


def test_the_fingerprint_changes_with_each_input(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "a.txt", "b.txt"):
        (tmp_path / name).write_text("same")
    first = setup_env.fingerprint("a.txt", tmp_path)
    assert setup_env.fingerprint("a.txt", tmp_path) == first
    assert setup_env.fingerprint("b.txt", tmp_path) != first
    (tmp_path / "a.txt").write_text("other")
    second = setup_env.fingerprint("a.txt", tmp_path)
    (tmp_path / "pyproject.toml").write_text("other")
    assert len({first, second, setup_env.fingerprint("a.txt", tmp_path)}) == 3


def run_main(monkeypatch: pytest.MonkeyPatch, venv: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["setup_env.py", "--device", "cpu", "--venv", str(venv)])
    setup_env.main()


def test_the_second_time_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(setup_env, "install", lambda _, name: installed.append(name))
    run_main(monkeypatch, tmp_path)
    run_main(monkeypatch, tmp_path)
    assert installed == ["constraints-cpu.txt"]
    monkeypatch.setattr(setup_env, "fingerprint", lambda _: "new")
    run_main(monkeypatch, tmp_path)
    assert len(installed) == 2


def test_a_failed_install_leaves_no_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise SystemExit("setup: failed")

    (tmp_path / setup_env.STAMP).write_text("old")
    monkeypatch.setattr(setup_env, "install", fail)
    with pytest.raises(SystemExit, match="failed"):
        run_main(monkeypatch, tmp_path)
    assert not (tmp_path / setup_env.STAMP).exists()


def test_no_pinned_set_names_torchvision_and_both_pin_torch() -> None:
    for name, torch in (("cpu", "torch==2.13.0"), ("gpu", "torch==2.11.0")):
        lines = (ROOT / f"constraints-{name}.txt").read_text().splitlines()
        assert torch in lines
        assert not [line for line in lines if line.startswith("torchvision")]
