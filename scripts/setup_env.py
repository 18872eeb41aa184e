"""Makes .venv on a machine that has only Python 3.11+ and pip's index.

Standard library only. Picks the constraints by what the NVIDIA driver supports; a visible GPU that
torch cannot use is an error, never a silent CPU. Does nothing when .venv already matches
pyproject.toml, the constraints, the device and this Python (a stamp inside .venv says so).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036  (runs before anything checks requires-python)
    raise SystemExit(f"setup: Python 3.11 or newer is needed, this is {sys.version}")

if TYPE_CHECKING:
    from ostinato.cli.nvidia import Gpu

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".ostinato-stamp"
CHECK_CUDA = """
import sys, torch
try:
    torch.zeros(1, device="cuda")
except Exception as error:
    print(f"{torch.version.cuda or 'none, a CPU build'}|{error}"); sys.exit(1)
"""


def load_nvidia() -> ModuleType:
    """The package's own GPU finder, loaded by path: the package is not installed yet."""
    path = ROOT / "src" / "ostinato" / "cli" / "nvidia.py"
    spec = importlib.util.spec_from_file_location("ostinato_nvidia", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


nvidia = load_nvidia()


def pick_constraints(device: str, gpu: Gpu | None) -> str:
    """The constraints file for this device and driver, or ``SystemExit`` with the reason."""
    if device == "cpu" or (device == "auto" and gpu is None):
        return "constraints-cpu.txt"
    if gpu is None:
        raise SystemExit("setup: DEVICE=cuda, and no NVIDIA GPU is visible to this process")
    if gpu.driver_branch is None or gpu.driver_branch < nvidia.NEEDED_DRIVER:
        raise SystemExit(f"setup: {nvidia.why_unusable(gpu)}")
    return "constraints-gpu.txt"


def fingerprint(constraints: str, root: Path = ROOT) -> str:
    """Changes whenever the environment has to be made again."""
    digest = hashlib.sha256(f"{sys.version}|{sys.prefix}|{root}|{constraints}|".encode())
    for name in ("pyproject.toml", constraints):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def run(*command: str | Path) -> None:
    """Run a command with its output visible; its failure ends the set-up."""
    done = subprocess.run([str(part) for part in command], check=False)
    if done.returncode:
        raise SystemExit(f"setup: failed ({done.returncode}): {' '.join(map(str, command))}")


def install(venv: Path, constraints: str) -> None:
    """Create or update the environment: pip only, one resolution under the constraints."""
    print(f"setup: {venv.name} with {constraints} (a few minutes the first time)", flush=True)
    if not (venv / "bin" / "pip").exists():
        run(sys.executable, "-m", "venv", "--clear", venv)
    pip = (venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--quiet")
    run(*pip, "-c", ROOT / constraints, "-e", f"{ROOT}[dev]")


def check_cuda(venv: Path, gpu: Gpu) -> None:
    """Put one tensor on the GPU with the torch just installed."""
    command = [str(venv / "bin" / "python"), "-c", CHECK_CUDA]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        torch_cuda, _, error = done.stdout.strip().partition("|")
        reason = nvidia.why_unusable(gpu, torch_cuda=torch_cuda or None)
        raise SystemExit(f"setup: {reason}\n{error or done.stderr.strip()}")


def main() -> None:
    """Parse, pick, install, check, stamp."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    gpu = nvidia.find_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))
    constraints = pick_constraints(options.device, gpu)
    stamp, wanted = options.venv / STAMP, fingerprint(constraints)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    began_s = time.monotonic()
    install(options.venv, constraints)
    if gpu is not None and constraints == "constraints-gpu.txt":
        check_cuda(options.venv, gpu)
    stamp.write_text(wanted)
    print(f"setup: done in {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
