"""One pre-norm transformer block on packed rows, for every norm and feed-forward layer."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.layers.attention import SegmentAttention
from ostinato.layers.mlp import GatedMlp, Mlp
from ostinato.layers.norm import LayerNorm, RMSNorm


class VisionBlock(nn.Module):
    """``x += attn(norm1(x)); x += mlp(norm2(x))``."""

    def __init__(
        self,
        norm1: LayerNorm | RMSNorm,
        attn: SegmentAttention,
        norm2: LayerNorm | RMSNorm,
        mlp: Mlp | GatedMlp,
    ) -> None:
        super().__init__()
        self.norm1 = norm1
        self.attn = attn
        self.norm2 = norm2
        self.mlp = mlp

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], offsets: Tensor, max_length: int
    ) -> Tensor:
        """``x``: (T, width); the rest as in ``SegmentAttention``. Returns a new (T, width)."""
        attended = self.attn(self.norm1(x), tables, offsets, max_length)
        x, normed = self.norm2.add(x, attended)
        result: Tensor = x + self.mlp(normed)
        return result
