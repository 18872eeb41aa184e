"""Self-attention within segments: one projection for q, k and v, rotary positions, projection."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.kernels.segment_attention import segment_attention
from ostinato.layers.linear import Linear
from ostinato.layers.rotary import rotate


class SegmentAttention(nn.Module):
    """Attention of packed rows (T, width); see ``segment_attention`` for offsets and bounds."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (width // num_heads) ** -0.5
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], offsets: Tensor, max_length: int
    ) -> Tensor:
        """``tables``: cosines and sines (T, head_dim / 2); ``offsets``: (segments + 1,) int32."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)
        q, k = rotate(q, *tables), rotate(k, *tables)
        rows_THD = segment_attention(q, k, v, offsets, max_length, scale=self.scale)
        projected: Tensor = self.proj(rows_THD.flatten(1))
        return projected
