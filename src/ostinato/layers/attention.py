"""Self-attention within segments: one projection for q, k and v, rotary positions."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.kernels.rotary_attention import rotary_attention
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
        return rotary_attention(
            qkv, *tables, offsets, max_length, heads=self.num_heads, scale=self.head_dim**-0.5
        )
