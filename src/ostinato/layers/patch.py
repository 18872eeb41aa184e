"""Both ends of a vision tower: patches to rows, and merged neighbours to embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.kernels.linear import linear
from ostinato.layers.fp8 import Rows
from ostinato.layers.linear import unset
from ostinato.layers.mlp import Mlp
from ostinato.layers.norm import LayerNorm, RMSNorm


def embed_patches(patches: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution whose stride is its kernel, as a product.

    ``patches``: (T, channels * frames * height * width) of any floating dtype, cast to the
    weight's; ``weight``: (width, channels, frames, height, width). Returns (T, width).
    """
    return linear(patches.to(weight.dtype), weight.flatten(1), bias)


class PatchProjection(nn.Module):
    """``weight`` keeps the published convolution shape; ``bias`` (width,) or absent."""

    bias: nn.Parameter | None

    def __init__(self, kernel: tuple[int, int, int, int], width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = unset(width, *kernel)
        self.register_parameter("bias", unset(width) if bias else None)

    def forward(self, patches: Tensor) -> Tensor:
        return embed_patches(patches, self.weight, self.bias)


class PatchEmbed(nn.Module):
    """``proj``, under its published name. ``kernel``: channels, frames, height, width."""

    def __init__(self, kernel: tuple[int, int, int, int], width: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = PatchProjection(kernel, width, bias=bias)

    def forward(self, patches: Tensor) -> Tensor:
        rows: Tensor = self.proj(patches)
        return rows


class PatchMerger(nn.Module):
    """Joins ``merge_unit`` rows and projects them: (T, width) to (T / unit, out_width).

    The norm stands before the joining, over ``width``, or after it (``norm_after_merge``), over
    ``width * merge_unit``.
    """

    def __init__(
        self,
        norm: type[LayerNorm | RMSNorm],
        width: int,
        merge_unit: int,
        out_width: int,
        *,
        norm_after_merge: bool = False,
    ) -> None:
        super().__init__()
        merged_width = width * merge_unit
        self.merged_width = merged_width
        self.norm_after_merge = norm_after_merge
        self.norm = norm(merged_width if norm_after_merge else width)
        self.mlp = Mlp(merged_width, merged_width, activation="gelu", out_width=out_width)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_after_merge:
            joined = x.view(-1, self.merged_width)
            merged: Tensor = self.mlp(self.norm.before(self.mlp.first, joined))
            return merged
        return self.project(self.norm(x))

    def project(self, normed: Rows) -> Tensor:
        """What follows the norm, for rows that were normalised already and are not joined yet.

        They are not quantised either: a joined row has one scale.
        """
        assert isinstance(normed, Tensor), "rows to be joined come unquantised"
        merged: Tensor = self.mlp(normed.view(-1, self.merged_width))
        return merged
