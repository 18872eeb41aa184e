"""One pre-norm transformer block on packed rows, for every norm and feed-forward layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ostinato.layers.attention import SegmentAttention
from ostinato.layers.fp8 import AnyLinear, Rows
from ostinato.layers.mlp import GatedMlp, Mlp
from ostinato.layers.norm import LayerNorm, RMSNorm


class Following(NamedTuple):
    """What begins behind a block: a norm, and the layer that takes its rows where it takes them as
    they are.
    """

    norm: LayerNorm | RMSNorm
    linear: AnyLinear | None


class VisionBlock(nn.Module):
    """``x += proj(attn(norm1(x))); x += mlp(norm2(x))``.

    Each addition runs together with the norm that follows it, so a block gets its first norm's
    result from whoever comes before it and makes that of whoever comes after it.
    """

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
        self,
        normed: Rows,
        x: Tensor,
        tables: tuple[Tensor, Tensor],
        offsets: Tensor,
        max_length: int,
        following: Following,
    ) -> tuple[Rows, Tensor]:
        """``normed = norm1(x)``, quantised where ``qkv`` is, and ``x``, (T, width); the rest as in
        ``SegmentAttention``.

        Returns ``(following.norm(y), y)`` of the block's result ``y``, new tensors.
        """
        attended = self.attn(normed, tables, offsets, max_length)
        normed, x = self.norm2.after(self.attn.proj, attended, x, self.mlp.first)
        inner = self.mlp.inner(normed)
        return following.norm.after(self.mlp.last, inner, x, following.linear)
