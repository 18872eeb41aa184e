"""The eager chain: gather four rows, weight them, add them from first to last, add to x."""

from __future__ import annotations

import torch


def position_interpolation_add(
    x: torch.Tensor, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    # Products and sums round to the promoted dtype of table and weights, as torch promotes them.
    total = table[indices[:, 0].long()] * weights[:, :1]
    for corner in range(1, indices.shape[1]):
        total = total + table[indices[:, corner].long()] * weights[:, corner : corner + 1]
    return torch.add(x, total.to(x.dtype)).contiguous()
