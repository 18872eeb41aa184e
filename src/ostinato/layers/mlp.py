"""Feed-forward layers: two matrices around an activation, or the gated kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ostinato.kernels.activations import Activation
from ostinato.layers.fp8 import AnyLinear, Rows, activated, gate_activated, project
from ostinato.layers.linear import Linear

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu_erf",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
}
"""Names that checkpoints use in ``hidden_act``: exact GELU (Hendrycks and Gimpel 2016), its tanh
approximation, and ``x * sigmoid(1.702 x)``."""

_INNER_MULTIPLE = 64
"""Products of wider multiples run at full speed: 3,420 columns of two bytes are not even aligned
to 16 bytes."""


class Mlp(nn.Module):
    """``fc2(activation(fc1(x)))``, both with bias."""

    fc1: AnyLinear
    fc2: AnyLinear

    def __init__(
        self, width: int, inner_width: int, *, activation: str, out_width: int | None = None
    ) -> None:
        super().__init__()
        self.fc1 = Linear(width, inner_width)
        self.fc2 = Linear(inner_width, width if out_width is None else out_width)
        self.activation = ACTIVATIONS[activation]

    @property
    def first(self) -> AnyLinear:
        """The layer that takes the rows."""
        return self.fc1

    @property
    def last(self) -> AnyLinear:
        """The layer that turns ``inner``'s rows into the result."""
        return self.fc2

    def inner(self, x: Rows) -> Rows:
        """(T, inner_width): all but the last layer."""
        return activated(self.fc1, x, self.activation, self.fc2)

    def forward(self, x: Rows) -> Tensor:
        return project(self.fc2, self.inner(x))


class GatedMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))`` (Shazeer 2020).

    Weights are loaded as published; ``pack`` then joins gate and up to one product.
    """

    gate_proj: Linear
    up_proj: Linear
    down_proj: AnyLinear
    gate_up_proj: AnyLinear | None

    def __init__(self, width: int, inner_width: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner_width, bias=bias)
        self.up_proj = Linear(width, inner_width, bias=bias)
        self.down_proj = Linear(inner_width, width, bias=bias)
        self.gate_up_proj = None

    @property
    def first(self) -> AnyLinear:
        """The layer that takes the rows."""
        assert self.gate_up_proj is not None, "pack() comes after the weights"
        return self.gate_up_proj

    @property
    def last(self) -> AnyLinear:
        """The layer that turns ``inner``'s rows into the result."""
        return self.down_proj

    def pack(self) -> None:
        """Join gate and up, and widen the inner rows by zeros to a multiple of 64, once.

        A column that was added is ``silu(0) * 0`` and meets a zero of ``down``: nothing changes
        but the speed. The packed weights are copies; the published ones are given up.
        """
        if self.gate_up_proj is not None:
            return
        num_inner, width = self.gate_proj.weight.shape
        added = -num_inner % _INNER_MULTIPLE
        with torch.no_grad():
            self.gate_up_proj = Linear(width, 2 * (num_inner + added), bias=False)
            self.gate_up_proj.weight = _joined(self.gate_proj.weight, self.up_proj.weight, added)
            if self.gate_proj.bias is not None and self.up_proj.bias is not None:
                bias = _joined(self.gate_proj.bias, self.up_proj.bias, added)
                self.gate_up_proj.register_parameter("bias", bias)
            if added:
                wider = nn.functional.pad(self.down_proj.weight, (0, added))
                self.down_proj.weight = nn.Parameter(wider, requires_grad=False)
        del self.gate_proj, self.up_proj

    def inner(self, x: Rows) -> Rows:
        """(T, inner_width), the width ``pack`` made of it: all but the last layer."""
        return gate_activated(project(self.first, x), self.down_proj)

    def forward(self, x: Rows) -> Tensor:
        return project(self.down_proj, self.inner(x))


def _joined(gate: Tensor, up: Tensor, added: int) -> nn.Parameter:
    """Gate's rows, zeros, up's rows, zeros."""
    padding = gate.new_zeros((added, *gate.shape[1:]))
    return nn.Parameter(torch.cat((gate, padding, up, padding)), requires_grad=False)


def pack_gates(module: nn.Module) -> None:
    """``pack`` every gated layer of a module whose weights have been loaded."""
    for layer in module.modules():
        if isinstance(layer, GatedMlp):
            layer.pack()
