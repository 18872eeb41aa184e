"""Qwen2-VL's tower: LayerNorm and quick-GELU, full attention within each frame."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.layers.attention import SegmentAttention
from ostinato.layers.block import VisionBlock
from ostinato.layers.mlp import Mlp
from ostinato.layers.norm import LayerNorm
from ostinato.layers.patch import PatchMerger
from ostinato.state import branching
from ostinato.vision.contract import EncoderOutput, LayoutTensors, VisionConfig
from ostinato.vision.fields import Fields
from ostinato.vision.tower import Tower

PUBLISHED_NAMES = (
    (r"^merger\.norm", "merger.ln_q"),
    (r"^merger\.mlp\.fc1", "merger.mlp.0"),
    (r"^merger\.mlp\.fc2", "merger.mlp.2"),
)
"""Regular expressions that turn this module's parameter names into published ones."""


def read_config(fields: Fields) -> VisionConfig:
    """Defaults are those of the published class, whose ``hidden_size`` is the output width."""
    width = fields.count("embed_dim", 1280)
    return VisionConfig(
        model_type="qwen2_vl",
        depth=fields.count("depth", 32),
        width=width,
        num_heads=fields.count("num_heads", 16),
        mlp_width=width * fields.count("mlp_ratio", 4),
        out_width=fields.count("hidden_size", 3584),
        patch_size=fields.count("patch_size", 14),
        temporal_patch_size=fields.count("temporal_patch_size", 2),
        merge_size=fields.count("spatial_merge_size", 2),
        in_channels=fields.count("in_channels", 3, alias="in_chans"),
        activation=fields.activation("quick_gelu"),
        rope_theta=fields.rope_theta(),
    )


class Qwen2VL(Tower):
    """See ``EncoderModel``."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config, has_patch_bias=False)
        width = config.width
        self.blocks = nn.ModuleList(
            VisionBlock(
                LayerNorm(width),
                SegmentAttention(width, config.num_heads),
                LayerNorm(width),
                Mlp(width, config.mlp_width, activation=config.activation),
            )
            for _ in range(config.depth)
        )
        self.merger = PatchMerger(LayerNorm, width, config.merge_unit, config.out_width)

    def forward(
        self, patches: Tensor, layout: LayoutTensors, *, max_segment: int, max_window: int
    ) -> EncoderOutput:
        with branching() as aside:
            tables = aside(self.rotary, layout.positions)
            x = self.patch_embed(patches)
            normed = self.first_norm(x)
        for block, following in self.blocks_with_following():
            normed, x = block(normed, x, tables, layout.segment_offsets, max_segment, following)
        return EncoderOutput(self.merger.project(normed), ())
