"""A visible GPU that torch cannot use is an error, never a silent CPU."""

from __future__ import annotations

import pytest

from ostinato.cli.device import resolve_device
from ostinato.cli.nvidia import Gpu
from ostinato.errors import DeviceError

CARD = Gpu("Card", "535.1")


def resolve(requested: str, gpu: Gpu | None, problem: str | None = None) -> str:
    return resolve_device(
        requested, cuda_visible_devices=None, find=lambda _: gpu, probe=lambda: problem
    )


def test_auto_takes_the_gpu_that_works_and_else_the_cpu() -> None:
    assert resolve("auto", CARD) == "cuda"
    assert resolve("auto", None) == "cpu"
    assert resolve("cuda", CARD) == "cuda"


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_visible_gpu_that_fails_is_an_error(requested: str) -> None:
    with pytest.raises(DeviceError, match=r"driver 535\.1, needed 580 or newer .* too old"):
        resolve(requested, CARD, "the driver is too old")


def test_the_cpu_by_name_asks_nobody() -> None:
    assert resolve("cpu", CARD, "the driver is too old") == "cpu"


def test_cuda_without_a_gpu_is_an_error() -> None:
    with pytest.raises(DeviceError, match="no NVIDIA GPU is visible"):
        resolve("cuda", None)
