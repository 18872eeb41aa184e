"""Configurations as published, with the older field names, and the classes' defaults."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

from ostinato.errors import WeightsError
from ostinato.vision.contract import VisionConfig
from ostinato.vision.fields import Fields
from ostinato.vision.load import tower_config
from ostinato.vision.registry import FAMILIES, find_family

QWEN2_VL_7B = {
    "depth": 32,
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_chans": 3,
    "hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
}
QWEN2_5_VL_7B = {
    "depth": 32,
    "hidden_act": "silu",
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_chans": 3,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 2,
    "temporal_patch_size": 2,
}
QWEN3_VL_8B = {
    "deepstack_visual_indexes": [8, 16, 24],
    "depth": 27,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "in_channels": 3,
    "initializer_range": 0.02,
    "intermediate_size": 4304,
    "model_type": "qwen3_vl",
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 4096,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def read(model_type: str, vision: dict[str, Any]) -> VisionConfig:
    family, fields = tower_config({"model_type": model_type, "vision_config": vision})
    return family.read_config(fields)


def test_published_configurations() -> None:
    older = read("qwen2_vl", QWEN2_VL_7B)
    assert (older.width, older.mlp_width, older.out_width) == (1280, 5120, 3584)
    assert (older.head_dim, older.activation, older.patch_width) == (80, "quick_gelu", 1176)
    middle = read("qwen2_5_vl", QWEN2_5_VL_7B)
    assert (middle.width, middle.mlp_width, middle.out_width) == (1280, 3420, 3584)
    assert (middle.window_side, middle.max_window_patches) == (4, 64)
    assert middle.full_attention_blocks == (7, 15, 23, 31)
    newer = read("qwen3_vl", QWEN3_VL_8B)
    assert (newer.width, newer.head_dim, newer.out_width, newer.depth) == (1152, 72, 4096, 27)
    assert (newer.position_side, newer.deepstack_blocks) == (48, (8, 16, 24))
    assert newer.patch_width == 1536


@pytest.mark.parametrize(
    ("model_type", "configuration"),
    [
        ("qwen2_vl", Qwen2VLVisionConfig),
        ("qwen2_5_vl", Qwen2_5_VLVisionConfig),
        ("qwen3_vl", Qwen3VLVisionConfig),
    ],
)
def test_absent_fields_have_the_published_defaults(
    model_type: str, configuration: type[transformers.PreTrainedConfig]
) -> None:
    """transformers leaves out what equals a default when it saves."""
    explicit = read(model_type, configuration().to_dict())
    assert FAMILIES[model_type].read_config(Fields({})) == explicit


def test_an_unknown_model_type_is_named_with_the_known_ones() -> None:
    for unknown in ("llava", None, "qwen3_vl_text"):
        with pytest.raises(WeightsError, match="known are qwen2_5_vl, qwen2_vl, qwen3_vl"):
            find_family(unknown)
    assert find_family("qwen3_vl_vision") is FAMILIES["qwen3_vl"]


def test_published_names_are_one_to_one() -> None:
    for model_type, family in FAMILIES.items():
        tower = family.build(read(model_type, {"depth": 32}))
        ours = [name for name, _ in tower.named_parameters()]
        theirs = {family.published_name(name) for name in ours}
        assert len(theirs) == len(ours)
