"""What this machine can do: driver, card, versions, and which kernels exist for the card.

A visible NVIDIA GPU that torch cannot use is an error, never a silent CPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ostinato.errors import DeviceError

PROC_VERSION = Path("/proc/driver/nvidia/version")
_NEEDED_DRIVERS = {"13": 580, "12": 525}
"""Major version of the CUDA that torch was built for -> the oldest driver branch that runs it."""


class VisibleGpu(NamedTuple):
    """A GPU that the kernel driver shows, whether torch can use it or not."""

    name: str
    driver: str | None


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Plain values. ``error`` is set when a GPU is visible and torch cannot use it.

    ``backends``: name -> ``"ok"`` (it ran on this card just now) or why not.
    """

    python: str
    platform: str
    torch: str
    torch_cuda: str | None
    triton: str | None
    driver: str | None
    gpu: str | None
    capability: str | None
    free_bytes: int | None
    total_bytes: int | None
    backends: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    def check(self) -> MachineReport:
        """Itself, or ``DeviceError`` with the error."""
        if self.error is not None:
            raise DeviceError(self.error)
        return self

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> MachineReport:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {value}".rstrip() for name, value in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "python", f"{self.python} on {self.platform}"
        yield (
            "torch",
            f"{self.torch}, built for {f'CUDA {self.torch_cuda}' if self.torch_cuda else 'CPU'}",
        )
        yield "triton", self.triton or "not installed"
        yield "driver", self.driver or "none"
        if self.gpu is None:
            yield "gpu", "none: recordings are made on the CPU tape"
        else:
            yield "gpu", f"{self.gpu} {self.capability or ''}"
        if self.total_bytes and self.free_bytes is not None:
            gib = 1 << 30
            yield "memory", f"{self.free_bytes / gib:.1f} of {self.total_bytes / gib:.1f} GiB free"
        yield from ((f"  {name}", verdict) for name, verdict in self.backends.items())
        if self.error:
            yield "ERROR", self.error


def machine(
    *,
    cuda_visible_devices: str | None = None,
    find: Callable[[], VisibleGpu | None] | None = None,
) -> MachineReport:
    """Look at this machine. ``cuda_visible_devices``: that variable's value; it may hide every GPU.

    On a usable GPU each backend runs once on a few kilobytes.
    """
    is_hidden = cuda_visible_devices is not None and cuda_visible_devices.strip() in ("", "-1")
    visible = None if is_hidden else (find or find_gpu)()
    problem = _problem() if visible is not None else None
    facts: dict[str, Any] = {"gpu": visible.name if visible else None, "capability": None}
    facts |= {"free_bytes": None, "total_bytes": None, "backends": {}, "error": None}
    if visible is not None and problem is not None:
        facts["error"] = _explained(visible, problem)
    elif torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        free, total = torch.cuda.mem_get_info()
        facts |= {"gpu": torch.cuda.get_device_name(), "capability": f"sm_{major}{minor}"}
        facts |= {"free_bytes": free, "total_bytes": total}
        from ostinato.recording.doctor_backends import backends

        facts["backends"] = backends()
    return MachineReport(
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        triton=_version("triton"),
        driver=visible.driver if visible else None,
        **facts,
    )


def find_gpu(proc_version: Path = PROC_VERSION) -> VisibleGpu | None:
    """The first GPU that ``nvidia-smi`` lists, or one that only the kernel driver's file shows."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        first = done.stdout.partition("\n")[0]
    except (OSError, subprocess.SubprocessError):
        first = ""
    if "," in first:
        name, driver = first.rsplit(",", 1)
        return VisibleGpu(name.strip(), driver.strip())
    if proc_version.exists():
        match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", proc_version.read_text())
        return VisibleGpu("an NVIDIA GPU", match.group(1) if match else None)
    return None


def _problem() -> str | None:
    """``None`` when torch can put a tensor on the GPU, else what it said."""
    try:
        torch.zeros(1, device="cuda")
    except Exception as error:
        return str(error).strip().partition("\n")[0]
    return None


def _explained(gpu: VisibleGpu, problem: str) -> str:
    cuda = torch.version.cuda
    needed = _NEEDED_DRIVERS.get((cuda or "13").partition(".")[0], 580)
    built = f"built for CUDA {cuda}" if cuda else "built without CUDA"
    return (
        f"{gpu.name} is visible and torch {torch.__version__} ({built}) cannot use it: driver "
        f"{gpu.driver or 'unknown'}, needed {needed} or newer"
        f"{'' if cuda else ', and a torch build with CUDA'}. torch says: {problem}"
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
