"""What all vision towers here begin with: the configuration, patch embedding, rotary positions."""

from __future__ import annotations

from torch import nn

from ostinato.layers.patch import PatchEmbed
from ostinato.layers.rotary import AxialRotary
from ostinato.vision.contract import VisionConfig


class Tower(nn.Module):
    """Base of the models; a model adds blocks, a merger and ``forward`` (see ``EncoderModel``)."""

    def __init__(self, config: VisionConfig, *, has_patch_bias: bool) -> None:
        super().__init__()
        self.config = config
        sides = (config.temporal_patch_size, config.patch_size, config.patch_size)
        kernel = (config.in_channels, *sides)
        self.patch_embed = PatchEmbed(kernel, config.width, bias=has_patch_bias)
        self.rotary = AxialRotary(config.head_dim, theta=config.rope_theta)
