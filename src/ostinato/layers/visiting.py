"""Runs a module whose weights live elsewhere: they visit the device for one call.

For what is needed rarely and does not fit beside what is needed always. Peak memory is one module's
weights; nothing is copied back, since nothing is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def call_on(device: torch.device, module: nn.Module, *args: Any) -> Any:
    """``module(*args)`` with copies on ``device`` of the parameters that lie elsewhere."""
    from torch.func import functional_call

    away = {name: p for name, p in module.named_parameters() if p.device != device}
    if not away:
        return module(*args)
    here = {name: p.to(device, non_blocking=True) for name, p in away.items()}
    return functional_call(module, here, args)


def send_home(module: nn.Module) -> None:
    """Move every parameter to the host, into pinned memory where a GPU will fetch it."""
    for parameter in module.parameters():
        home = parameter.data.cpu()
        parameter.data = home.pin_memory() if torch.cuda.is_available() else home
