"""Qwen3-VL's tower: learned positions interpolated to each grid, DeepStack levels."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.kernels.position_interpolation_add import position_interpolation_add
from ostinato.layers.attention import SegmentAttention
from ostinato.layers.block import VisionBlock
from ostinato.layers.linear import unset
from ostinato.layers.mlp import Mlp
from ostinato.layers.norm import LayerNorm
from ostinato.layers.patch import PatchMerger
from ostinato.state import branching
from ostinato.vision.contract import EncoderOutput, LayoutTensors, VisionConfig
from ostinato.vision.fields import Fields
from ostinato.vision.tower import Tower

MAX_ROWS_BESIDE = 4096
"""With more rows the blocks fill the device, and what runs beside them only needs more memory."""

PUBLISHED_NAMES = (
    (r"^(blocks\.\d+\.mlp)\.fc", r"\1.linear_fc"),
    (r"^(merger|deepstack_merger_list\.\d+)\.mlp\.fc", r"\1.linear_fc"),
)
"""Regular expressions that turn this module's parameter names into published ones."""


def read_config(fields: Fields) -> VisionConfig:
    """Defaults are those of the published configuration class."""
    return VisionConfig(
        model_type="qwen3_vl",
        depth=fields.count("depth", 27),
        width=fields.count("hidden_size", 1152),
        num_heads=fields.count("num_heads", 16),
        mlp_width=fields.count("intermediate_size", 4304),
        out_width=fields.count("out_hidden_size", 3584),
        patch_size=fields.count("patch_size", 16),
        temporal_patch_size=fields.count("temporal_patch_size", 2),
        merge_size=fields.count("spatial_merge_size", 2),
        in_channels=fields.count("in_channels", 3),
        activation=fields.activation("gelu_pytorch_tanh"),
        rope_theta=fields.rope_theta(),
        position_side=fields.square_root("num_position_embeddings", 2304),
        deepstack_blocks=fields.blocks("deepstack_visual_indexes", (8, 16, 24)),
    )


class PositionTable(nn.Module):
    """``weight``: (position_side ** 2, width)."""

    def __init__(self, num_positions: int, width: int) -> None:
        super().__init__()
        self.weight = unset(num_positions, width)

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """``x`` (T, width) plus the positions that ``indices`` (T, 4) int32 and ``weights`` (T, 4)
        float32 interpolate.
        """
        return position_interpolation_add(x, self.weight, indices, weights)


class Qwen3VL(Tower):
    """See ``EncoderModel``."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config, has_patch_bias=True)
        width, unit = config.width, config.merge_unit
        self.pos_embed = PositionTable(config.position_side**2, width)
        self.blocks = nn.ModuleList(
            VisionBlock(
                LayerNorm(width),
                SegmentAttention(width, config.num_heads),
                LayerNorm(width),
                Mlp(width, config.mlp_width, activation=config.activation),
            )
            for _ in range(config.depth)
        )
        self.merger = PatchMerger(LayerNorm, width, unit, config.out_width)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(LayerNorm, width, unit, config.out_width, norm_after_merge=True)
            for _ in config.deepstack_blocks
        )

    def forward(
        self, patches: Tensor, layout: LayoutTensors, *, max_segment: int, max_window: int
    ) -> EncoderOutput:
        assert layout.interpolation_indices is not None
        assert layout.interpolation_weights is not None
        with branching() as aside:
            tables = aside(self.rotary, layout.positions)
            x = self.pos_embed(
                self.patch_embed(patches),
                layout.interpolation_indices,
                layout.interpolation_weights,
            )
            normed = self.first_norm(x)
        levels: list[Tensor] = []
        with branching(is_worth_it=x.shape[0] <= MAX_ROWS_BESIDE) as aside:
            for index, (block, following) in enumerate(self.blocks_with_following()):
                normed, x = block(normed, x, tables, layout.segment_offsets, max_segment, following)
                if index in self.config.deepstack_blocks:
                    levels.append(aside(self.deepstack_merger_list[len(levels)], x))
            embeddings = self.merger.project(normed)
        return EncoderOutput(embeddings, tuple(levels))
