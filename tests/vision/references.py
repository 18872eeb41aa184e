"""Random transformers models of the three families, and both towers run on the same batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.vision.contract import EncoderModel, EncoderOutput, Grid, Layout
from ostinato.vision.layout import to_tensors

MIXED_GRIDS: tuple[Grid, ...] = ((1, 8, 12), (3, 6, 10), (1, 2, 2), (2, 14, 18), (1, 2, 22))
"""Images and videos, odd grids, one row of merge units."""

_TEXT = {
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_SIZES = {"depth": 4, "num_heads": 4, "patch_size": 4}


def _qwen2_vl() -> nn.Module:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = _SIZES | {"embed_dim": 64, "hidden_size": 48}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(vision_config=vision, text_config=_TEXT))


def _qwen2_5_vl() -> nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = _SIZES | {
        "hidden_size": 64,
        "intermediate_size": 96,
        "window_size": 32,
        "out_hidden_size": 48,
        "fullatt_block_indexes": [1, 3],
    }
    config = Qwen2_5_VLConfig(vision_config=vision, text_config=_TEXT)
    return Qwen2_5_VLForConditionalGeneration(config)


def _qwen3_vl() -> nn.Module:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    vision = _SIZES | {
        "hidden_size": 64,
        "intermediate_size": 96,
        "out_hidden_size": 48,
        "num_position_embeddings": 49,
        "deepstack_visual_indexes": [0, 2],
    }
    config = Qwen3VLConfig(vision_config=vision, text_config=_TEXT | {"head_dim": 12})
    return Qwen3VLForConditionalGeneration(config)


_MAKERS: dict[str, Callable[[], nn.Module]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
}
FAMILIES = tuple(_MAKERS)


def make_model(family: str, *, seed: int = 0) -> nn.Module:
    """A whole model whose parameters are large enough for every path to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _MAKERS[family]().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                scale = 0.2 if parameter.dim() > 1 else 0.1
                parameter.copy_(parameter.mean() + scale * torch.randn_like(parameter))
    return model


def tower_of(model: nn.Module) -> Any:
    return model.get_submodule("model.visual")


def make_patches(num_rows: int, width: int, *, seed: int = 1) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))


def run_reference(model: nn.Module, patches: Tensor, grids: Sequence[Grid]) -> list[Tensor]:
    """transformers' embeddings, then its DeepStack levels."""
    with torch.inference_mode():
        result = tower_of(model)(patches, torch.tensor(grids))
    return [result.pooler_output, *(getattr(result, "deepstack_features", None) or ())]


def run(tower: EncoderModel, patches: Tensor, layout: Layout) -> list[Tensor]:
    """Our embeddings, then DeepStack levels; all rows of the layout's size."""
    with torch.inference_mode():
        output: EncoderOutput = tower(
            patches,
            to_tensors(layout.arrays),
            max_segment=layout.size.max_segment,
            max_window=layout.size.max_window,
        )
    return [output.embeddings, *output.deepstack]


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Relative: norm of the difference over the norm of the reference."""
    return ((ours - theirs).norm() / theirs.norm()).item()
