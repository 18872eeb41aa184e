"""Self-attention within segments: one projection for q, k and v, rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ostinato.kernels.rope import rope
from ostinato.kernels.segment_attention import segment_attention
from ostinato.layers.fp8 import AnyLinear, Rows, project
from ostinato.layers.linear import Linear


class SegmentAttention(nn.Module):
    """Attention of packed rows (T, width); see ``segment_attention`` for offsets and bounds.

    The output projection ``proj`` is left to the norm that follows: see ``Norm.after``.
    """

    qkv: AnyLinear
    proj: AnyLinear

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(
        self, x: Rows, tables: tuple[Tensor, Tensor], offsets: Tensor, max_length: int
    ) -> Tensor:
        """(T, width), not projected yet. ``tables``: cosines and sines (T, head_dim / 2);
        ``offsets``: (segments + 1,) int32.
        """
        qkv = project(self.qkv, x)
        # In a pass over v that is made anyway; the attention kernels that need it are for bfloat16.
        is_clean = qkv.dtype == torch.bfloat16
        q, k, v = rope(
            qkv, *tables, heads=self.num_heads, head_dim=self.head_dim, is_v_cleaned=is_clean
        )
        scale = self.head_dim**-0.5
        rows_THD = segment_attention(
            q, k, v, offsets, max_length, scale=scale, is_v_finite=is_clean
        )
        return rows_THD.flatten(1)
