"""Rotary positions on two axes, as vision towers use them.

Half of the rotated pairs turn with the row, the other half with the column. Tables hold each angle
once, (T, head_dim / 2); the second half of a head reuses the first half's angles.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def axial_frequencies(head_dim: int, theta: float) -> Tensor:
    """(head_dim / 4,) float32 on the CPU: ``theta ** (-2 i / (head_dim / 2))`` (Su et al. 2021)."""
    axis_dim = head_dim // 2
    exponents = torch.arange(0, axis_dim, 2, dtype=torch.float32, device="cpu") / axis_dim
    return 1.0 / (theta**exponents)


def rotary_tables(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (T, head_dim / 2) float32, of ``positions`` (T, 2) = (row, column)."""
    angles = (positions[:, :, None].float() * frequencies).flatten(1)
    return angles.cos(), angles.sin()


class AxialRotary(nn.Module):
    """Makes the tables; holds the frequencies as a buffer that no checkpoint contains."""

    frequencies: Tensor

    def __init__(self, head_dim: int, *, theta: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", axial_frequencies(head_dim, theta), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary_tables(positions, self.frequencies)
