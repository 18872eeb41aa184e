"""Qwen2.5-VL's tower: RMSNorm, SwiGLU, attention in windows with some full-attention blocks.

The blocks work in window order: merge units are permuted once after the patch embedding and the
embeddings are permuted back at the end. Frames stay contiguous in that order.
"""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.errors import WeightsError
from ostinato.layers.attention import SegmentAttention
from ostinato.layers.block import VisionBlock
from ostinato.layers.mlp import GatedMlp
from ostinato.layers.norm import RMSNorm
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
    """Defaults are those of the published configuration class."""
    fields.must_be("hidden_act", "silu")
    patch_size = fields.count("patch_size", 14)
    merge_size = fields.count("spatial_merge_size", 2)
    window_size = fields.count("window_size", 112)
    window_side = window_size // merge_size // patch_size
    if window_side == 0:
        raise WeightsError(
            f"vision_config.window_size must hold a merged patch of {merge_size * patch_size} "
            f"pixels, got {window_size}"
        )
    return VisionConfig(
        model_type="qwen2_5_vl",
        depth=fields.count("depth", 32),
        width=fields.count("hidden_size", 3584),
        num_heads=fields.count("num_heads", 16),
        mlp_width=fields.count("intermediate_size", 3420),
        out_width=fields.count("out_hidden_size", 3584),
        patch_size=patch_size,
        temporal_patch_size=fields.count("temporal_patch_size", 2),
        merge_size=merge_size,
        in_channels=fields.count("in_channels", 3, alias="in_chans"),
        activation="silu",
        rope_theta=fields.rope_theta(),
        window_side=window_side,
        full_attention_blocks=fields.blocks("fullatt_block_indexes", (7, 15, 23, 31)),
    )


class Qwen2_5VL(Tower):
    """See ``EncoderModel``."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config, has_patch_bias=False)
        width = config.width
        self.blocks = nn.ModuleList(
            VisionBlock(
                RMSNorm(width),
                SegmentAttention(width, config.num_heads),
                RMSNorm(width),
                GatedMlp(width, config.mlp_width, bias=True),
            )
            for _ in range(config.depth)
        )
        self.merger = PatchMerger(RMSNorm, width, config.merge_unit, config.out_width)

    def forward(
        self, patches: Tensor, layout: LayoutTensors, *, max_segment: int, max_window: int
    ) -> EncoderOutput:
        assert layout.window_order is not None
        assert layout.window_inverse is not None
        assert layout.window_offsets is not None
        with branching() as aside:
            tables = aside(self.rotary, layout.positions)
            x = self.patch_embed(patches)
            units = x.view(-1, self.config.merge_unit * self.config.width)
            x = units.index_select(0, layout.window_order).view(x.shape)
            normed = self.first_norm(x)
        for index, (block, following) in enumerate(self.blocks_with_following()):
            if index in self.config.full_attention_blocks:
                normed, x = block(normed, x, tables, layout.segment_offsets, max_segment, following)
            else:
                normed, x = block(normed, x, tables, layout.window_offsets, max_window, following)
        embeddings = self.merger.project(normed)
        return EncoderOutput(embeddings.index_select(0, layout.window_inverse), ())
