"""Finding a GPU and its driver without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.cli.nvidia import NEEDED_DRIVER, Gpu, find_gpu, why_unusable

NOWHERE = Path("/nonexistent")
H200 = "NVIDIA H200, 580.159.03\nNVIDIA H200, 580.159.03"


def test_smi_tells_name_and_driver() -> None:
    gpu = find_gpu(None, ask=lambda: H200, proc_version=NOWHERE)
    assert gpu == Gpu("NVIDIA H200", "580.159.03")
    assert gpu.driver_branch == 580


def test_the_kernel_driver_alone_counts_as_a_gpu(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    gpu = find_gpu(None, ask=lambda: "", proc_version=version)
    assert gpu == Gpu("NVIDIA GPU", "535.104.05")


def test_the_open_kernel_driver_is_read_too(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    )
    gpu = find_gpu(None, ask=lambda: "", proc_version=version)
    assert gpu == Gpu("NVIDIA GPU", "580.65.06")


def test_no_gpu() -> None:
    assert find_gpu(None, ask=lambda: "", proc_version=NOWHERE) is None


@pytest.mark.parametrize("hidden", ["", " ", "-1"])
def test_a_hidden_gpu_is_no_gpu(hidden: str) -> None:
    assert find_gpu(hidden, ask=lambda: H200, proc_version=NOWHERE) is None


def test_a_chosen_gpu_is_a_gpu() -> None:
    assert find_gpu("0", ask=lambda: H200, proc_version=NOWHERE) is not None


def test_the_message_names_both_versions() -> None:
    message = why_unusable(Gpu("Card", "535.1"), torch_cuda="13.0")
    assert "driver 535.1" in message
    assert f"needed {NEEDED_DRIVER} or newer" in message
    assert "built for CUDA 13.0" in message
