"""Resolves ``--device``: a visible GPU that torch cannot use is an error, never a silent CPU."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.cli.nvidia import Gpu, find_gpu, why_unusable
from ostinato.errors import DeviceError


def probe_cuda() -> str | None:
    """``None`` when torch can put a tensor on the GPU, else what it said."""
    import torch

    try:
        torch.zeros(1, device="cuda")
    except Exception as error:
        return str(error)
    return None


def resolve_device(
    requested: str,
    *,
    cuda_visible_devices: str | None,
    find: Callable[[str | None], Gpu | None] = find_gpu,
    probe: Callable[[], str | None] = probe_cuda,
) -> str:
    """``cuda`` or ``cpu`` for ``auto``, ``cuda`` or ``cpu``."""
    if requested == "cpu":
        return "cpu"
    gpu = find(cuda_visible_devices)
    if gpu is None:
        if requested == "cuda":
            raise DeviceError("--device cuda, and no NVIDIA GPU is visible to this process")
        return "cpu"
    problem = probe()
    if problem is not None:
        import torch

        raise DeviceError(f"{why_unusable(gpu, torch_cuda=torch.version.cuda)} torch: {problem}")
    return "cuda"
