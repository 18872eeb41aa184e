"""Where weights are to lie."""

from __future__ import annotations

import torch

from ostinato.errors import DeviceError


def find_device(device: str | torch.device) -> torch.device:
    """``auto`` is the GPU where there is one; ``cuda`` becomes ``cuda:N``, so that devices compare
    equal. Raises ``DeviceError`` for a GPU where none is visible.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device is {device}; no GPU is visible")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found
