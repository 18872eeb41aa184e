"""What all vision towers here begin with: the configuration, patch embedding, rotary positions."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from ostinato.layers.block import Following, VisionBlock
from ostinato.layers.fp8 import Rows
from ostinato.layers.patch import PatchEmbed, PatchMerger
from ostinato.layers.rotary import AxialRotary
from ostinato.vision.contract import VisionConfig


class Tower(nn.Module):
    """Base of the models; a model adds blocks, a merger and ``forward`` (see ``EncoderModel``).

    The merger's norm stands before the joining, so that the last block makes its input.
    """

    blocks: nn.ModuleList
    merger: PatchMerger

    def __init__(self, config: VisionConfig, *, has_patch_bias: bool) -> None:
        super().__init__()
        self.config = config
        sides = (config.temporal_patch_size, config.patch_size, config.patch_size)
        kernel = (config.in_channels, *sides)
        self.patch_embed = PatchEmbed(kernel, config.width, bias=has_patch_bias)
        self.rotary = AxialRotary(config.head_dim, theta=config.rope_theta)

    def first_norm(self, x: Tensor) -> Rows:
        """What the first block begins with."""
        first: VisionBlock = self.blocks[0]  # type: ignore[assignment]
        return first.norm1.before(first.attn.qkv, x)

    def blocks_with_following(self) -> Iterator[tuple[VisionBlock, Following]]:
        """Each block, and what stands behind it. The merger joins rows behind its norm."""
        blocks: list[VisionBlock] = list(self.blocks)  # type: ignore[arg-type]
        following = [Following(b.norm1, b.attn.qkv) for b in blocks[1:]]
        yield from zip(blocks, [*following, Following(self.merger.norm, None)], strict=True)
