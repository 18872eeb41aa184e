from __future__ import annotations

import pytest
import torch

from ostinato.errors import DeviceError
from ostinato.weights.device import find_device


@pytest.mark.parametrize("device", ["auto", "cpu", torch.device("cpu")])
def test_without_a_gpu(device: str | torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device(device) == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_gpu_that_is_not_there(
    device: str | torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"device is cuda(:1)?; no GPU is visible"):
        find_device(device)


def test_a_gpu_has_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert find_device("auto") == find_device("cuda") == torch.device("cuda", 3)
    assert find_device("cuda:1") == torch.device("cuda", 1)
    assert find_device("cpu") == torch.device("cpu")
