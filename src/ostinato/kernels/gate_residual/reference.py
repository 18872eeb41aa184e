"""The eager chain ``x + gate * (y + plus)``: each operation rounds."""

from __future__ import annotations

import torch

from ostinato.kernels.modulate.reference import per_row


def gate_residual(
    x: torch.Tensor,
    y: torch.Tensor,
    gate: torch.Tensor,
    segments: torch.Tensor | None,
    plus: torch.Tensor | None,
) -> torch.Tensor:
    y = y if plus is None else y + plus
    return torch.add(x, per_row(gate, segments) * y).contiguous()
