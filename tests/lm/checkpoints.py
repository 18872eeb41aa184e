"""Random transformers models of both families, small, with weights wide enough to tell tokens
apart, and the directories that they save themselves to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

FAMILIES = ("qwen2_5_vl", "qwen3_vl")

SPECIALS = {
    "image_token_id": 261,
    "video_token_id": 262,
    "vision_start_token_id": 259,
    "vision_end_token_id": 260,
}
_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "max_position_embeddings": 2048,
    "bos_token_id": 256,
    "eos_token_id": 258,
}
_VISION: dict[str, Any] = {"depth": 3, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 64}


def make_model(family: str, *, is_tied: bool = False, scale: int = 1) -> nn.Module:
    """float32, on the CPU, the same weights each time; ``scale`` times as wide."""
    import transformers

    def wider(sizes: dict[str, Any], initializer_range: float) -> dict[str, Any]:
        widths = ("size", "heads")
        grown = {k: v * scale for k, v in sizes.items() if k.endswith(widths) and k[0] != "v"}
        return sizes | grown | {"initializer_range": initializer_range * scale**-0.5}

    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family == "qwen3_vl":
            rope: dict[str, Any] = {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
            text = wider(_TEXT, 0.15) | {"head_dim": 16}
            vision = wider(_VISION | {"intermediate_size": 96}, 0.1) | {
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1, 2],
            }
        else:
            rope = {"mrope_section": [2, 3, 3]}
            text = wider(_TEXT, 0.15) | {"rms_norm_eps": 1e-6}
            vision = wider(_VISION | {"intermediate_size": 96}, 0.1) | {
                "fullatt_block_indexes": [1],
                "tokens_per_second": 2,
            }
        text = text | {"rope_parameters": rope | {"rope_type": "default", "rope_theta": 1e4}}
        name = {"qwen3_vl": "Qwen3VL", "qwen2_5_vl": "Qwen2_5_VL"}[family]
        config = getattr(transformers, f"{name}Config")(
            text_config=text, vision_config=vision, tie_word_embeddings=is_tied, **SPECIALS
        )
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and scales that are zero or one show nothing
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
        if not is_tied:  # transformers takes a placeholder in a reply for an image of the prompt
            model.lm_head.weight.data[SPECIALS["vision_start_token_id"] :] = 0
    result: nn.Module = model.eval()
    return result


def save(model: Any, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory
