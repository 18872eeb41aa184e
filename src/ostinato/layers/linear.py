"""The linear layer: parameters without storage, a function of tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unset(*shape: int) -> nn.Parameter:
    """A parameter that has a shape and no storage, until ``weights`` assigns its tensor."""
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)


class Linear(nn.Module):
    """``x @ weight^T + bias``; ``weight`` (out, in), ``bias`` (out,) or absent."""

    bias: nn.Parameter | None

    def __init__(self, num_inputs: int, num_outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = unset(num_outputs, num_inputs)
        self.register_parameter("bias", unset(num_outputs) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
