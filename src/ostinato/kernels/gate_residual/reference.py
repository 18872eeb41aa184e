"""The eager chain ``x + gate * y``; the product rounds, then the sum."""

from __future__ import annotations

import torch

from ostinato.kernels.modulate.reference import per_row


def gate_residual(
    x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor, segments: torch.Tensor | None
) -> torch.Tensor:
    return torch.add(x, per_row(gate, segments) * y).contiguous()
