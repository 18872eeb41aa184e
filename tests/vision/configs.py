"""Small configurations for tests of layouts and towers."""

from __future__ import annotations

from ostinato.vision.contract import VisionConfig


def make_config(*, position_side: int = 0, window_side: int = 0, depth: int = 2) -> VisionConfig:
    return VisionConfig(
        model_type="test",
        depth=depth,
        width=32,
        num_heads=4,
        mlp_width=48,
        out_width=24,
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        position_side=position_side,
        window_side=window_side,
    )
