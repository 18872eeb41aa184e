"""What users have today: Qwen3-VL-8B of transformers, published sizes, random bf16 weights.

One request at a time through ``generate``, its image prepared by transformers' own processor on
the CPU; eager or sdpa attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn

from bench.peers.transformers_vision import configs_of, use_attention, vision_sizes

SPECIALS = {
    "image_token_id": 261,
    "video_token_id": 262,
    "vision_start_token_id": 259,
    "vision_end_token_id": 260,
}
"""Of the byte tokenizer, which stands in for the published one on both sides."""

_TEXT: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}
_TINY: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 266,
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True}


def make_model(
    *, layers: int | None, device: torch.device, dtype: torch.dtype, is_tiny: bool = False
) -> nn.Module:
    """The whole model with weights drawn on ``device``; ``layers`` of the decoder."""
    import transformers

    text = dict(_TINY if is_tiny else _TEXT)
    text["rope_parameters"] = _ROPE | {"mrope_section": [4, 2, 2] if is_tiny else [24, 20, 20]}
    text["num_hidden_layers"] = layers or text["num_hidden_layers"]
    vision = vision_sizes("qwen3_vl", 3 if is_tiny else None, is_tiny=is_tiny)
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **SPECIALS)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model: nn.Module = transformers.Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


class Peer:
    """Image and token ids in, as many tokens as are asked for out."""

    def __init__(self, model: nn.Module) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )

        self._model: Any = model
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._configs = configs_of(model)
        self._processor = Qwen2VLImageProcessorPil(
            patch_size=16,
            size={"shortest_edge": 65536, "longest_edge": 16777216},
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        )

    def use(self, attention: str) -> None:
        """``sdpa`` or ``eager``."""
        use_attention(self._configs, attention)

    def answer(self, image: Image.Image, token_ids: Sequence[int], count: int) -> list[int]:
        """``count`` greedy tokens, the image's preparation included."""
        prepared = self._processor(image, return_tensors="pt")
        ids = torch.tensor([list(token_ids)]).to(self._device)
        whole = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == SPECIALS["image_token_id"]).int(),
            pixel_values=prepared["pixel_values"].to(self._device, self._dtype),
            image_grid_thw=prepared["image_grid_thw"].to(self._device),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        answer: list[int] = whole[0, len(token_ids) :].tolist()
        return answer
