"""Feed-forward layers: two matrices around an activation, or the gated kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ostinato.kernels.activations import Activation
from ostinato.layers.copies import Pair, remember
from ostinato.layers.fp8 import AnyLinear, Rows, activated, gate_activated, project
from ostinato.layers.linear import Linear

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu_erf",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
}
"""Names that checkpoints use in ``hidden_act``: exact GELU (Hendrycks and Gimpel 2016), its tanh
approximation, and ``x * sigmoid(1.702 x)``."""

_FULL_SPEED, _THIRDS = 64, 48
"""Multiples of the first run at full speed as they are. Others (3,420 or 4,304 columns) are widened
to the second: aligned to 16 bytes, and so is each third, in which a deep product of few rows may be
computed."""


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

    def pack(self) -> list[Pair]:
        """Widen the inner rows by zeros to a multiple that products are fast for, once.

        A column that was added is ``activation(0) = 0`` and meets a zero of ``fc2``: nothing
        changes but the speed. Weights that are widened are copies: the result tells of what.
        """
        fc1, fc2 = self.fc1, self.fc2
        num_inner = fc1.weight.shape[0]
        added = _num_added(num_inner)
        if not added or not isinstance(fc1, Linear) or not isinstance(fc2, Linear):
            return []
        assert fc1.bias is not None
        first, bias, last = fc1.weight, fc1.bias, fc2.weight
        with torch.no_grad():
            fc1.weight = _padded(first, (0, 0, 0, added))
            fc1.bias = _padded(bias, (0, added))
            fc2.weight = _padded(last, (0, added))
        return [
            Pair(first, fc1.weight[:num_inner]),
            Pair(bias, fc1.bias[:num_inner]),
            Pair(last, fc2.weight[:, :num_inner]),
        ]

    def inner(self, x: Rows) -> Rows:
        """(T, inner_width), the width ``pack`` made of it: all but the last layer."""
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

    def pack(self) -> list[Pair]:
        """Join gate and up, and widen the inner rows by zeros as ``Mlp.pack`` does, once.

        A column that was added is ``silu(0) * 0`` and meets a zero of ``down``: nothing changes
        but the speed. The packed weights are copies: the result tells of what.
        """
        if self.gate_up_proj is not None:
            return []
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        num_inner, width = gate.weight.shape
        added = _num_added(num_inner)
        packed = Linear(width, 2 * (num_inner + added), bias=False)
        parts = (slice(0, num_inner), slice(num_inner + added, 2 * num_inner + added))
        pairs: list[Pair] = []
        with torch.no_grad():
            packed.weight = _joined(gate.weight, up.weight, added)
            pairs += [Pair(gate.weight, packed.weight[parts[0]])]
            pairs += [Pair(up.weight, packed.weight[parts[1]])]
            if gate.bias is not None and up.bias is not None:
                packed.bias = _joined(gate.bias, up.bias, added)
                pairs += [Pair(gate.bias, packed.bias[parts[0]])]
                pairs += [Pair(up.bias, packed.bias[parts[1]])]
            if added:
                last = down.weight
                down.weight = _padded(last, (0, added))
                pairs += [Pair(last, down.weight[:, :num_inner])]
        self.gate_up_proj = packed
        del self.gate_proj, self.up_proj
        return pairs

    def inner(self, x: Rows) -> Rows:
        """(T, inner_width), the width ``pack`` made of it: all but the last layer."""
        return gate_activated(project(self.first, x), self.down_proj)

    def forward(self, x: Rows) -> Tensor:
        return project(self.down_proj, self.inner(x))


def _num_added(num_inner: int) -> int:
    """Columns that make ``num_inner`` a multiple that products are fast for."""
    return -num_inner % _THIRDS if num_inner % _FULL_SPEED else 0


def _padded(weight: Tensor, sides: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(nn.functional.pad(weight, sides), requires_grad=False)


def _joined(gate: Tensor, up: Tensor, added: int) -> nn.Parameter:
    """Gate's rows, zeros, up's rows, zeros."""
    padding = gate.new_zeros((added, *gate.shape[1:]))
    return nn.Parameter(torch.cat((gate, padding, up, padding)), requires_grad=False)


def pack_mlps(module: nn.Module) -> None:
    """``pack`` every feed-forward layer of a module whose weights have been loaded; its copies are
    remembered (``copies_of``).
    """
    layers = [layer for layer in module.modules() if isinstance(layer, (Mlp, GatedMlp))]
    pairs = [pair for layer in layers for pair in layer.pack()]
    if pairs:
        remember(module, pairs)
