"""Finds an NVIDIA GPU and its driver without torch, and says which torch build they can use.

Standard library only: ``scripts/setup_env.py`` loads this file before anything is installed.
It reads no environment variable; callers pass ``CUDA_VISIBLE_DEVICES`` in.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NEEDED_DRIVER = 580
"""The oldest driver branch that runs CUDA 13.0, which the pinned torch build is made for."""

PROC_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A visible NVIDIA GPU. ``driver`` is ``None`` where nothing tells its version."""

    name: str
    driver: str | None

    @property
    def driver_branch(self) -> int | None:
        """580 for 580.159.03."""
        match = re.match(r"\d+", self.driver or "")
        return int(match.group()) if match else None


def ask_nvidia_smi() -> str:
    """One ``name, driver`` line per GPU, or nothing where the tool is missing or fails."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_gpu(
    cuda_visible_devices: str | None,
    *,
    ask: Callable[[], str] = ask_nvidia_smi,
    proc_version: Path = PROC_VERSION,
) -> Gpu | None:
    """The first GPU that this process may see, or ``None``.

    A kernel driver without a working ``nvidia-smi`` counts as a GPU: it must lead to a clear error
    later rather than to a silent CPU.
    """
    if cuda_visible_devices is not None and cuda_visible_devices.strip() in {"", "-1"}:
        return None
    first_line = ask().partition("\n")[0]
    if "," in first_line:
        name, driver = (part.strip() for part in first_line.rsplit(",", 1))
        return Gpu(name, driver)
    if proc_version.exists():
        match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", proc_version.read_text())
        return Gpu("NVIDIA GPU", match.group(1) if match else None)
    return None


def why_unusable(gpu: Gpu, *, torch_cuda: str | None = None) -> str:
    """What to tell a user whose visible GPU torch cannot use, with the version that would do."""
    built = f"torch here is built for CUDA {torch_cuda}" if torch_cuda else "torch needs CUDA 13.0"
    return (
        f"{gpu.name} is visible and torch cannot use it: driver {gpu.driver or 'unknown'}, needed "
        f"{NEEDED_DRIVER} or newer ({built}). Update the driver, or ask for the CPU by name "
        f"(make serve DEVICE=cpu, --device cpu)."
    )
