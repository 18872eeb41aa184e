"""What users have today: transformers' vision towers, published sizes, random bf16 weights.

``sdpa`` is transformers' default path (each segment apart); ``flash`` is its path for flash
attention, with torch's own varlen kernel behind it, so that no further package is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "qwen2_vl")
FLASH = "ostinato_bench_flash"

_PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "depth": 27,
        "hidden_size": 1152,
        "num_heads": 16,
        "intermediate_size": 4304,
        "out_hidden_size": 4096,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    "qwen2_5_vl": {
        "depth": 32,
        "hidden_size": 1280,
        "num_heads": 16,
        "intermediate_size": 3420,
        "out_hidden_size": 3584,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "qwen2_vl": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584},
}
"""Qwen3-VL-8B, Qwen2.5-VL-7B, Qwen2-VL-7B; what is not named is the class's default."""

_TINY: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "out_hidden_size": 48},
    "qwen2_5_vl": {
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 96,
        "out_hidden_size": 48,
    },
    "qwen2_vl": {"embed_dim": 64, "num_heads": 4, "hidden_size": 48},
}


def vision_sizes(family: str, depth: int | None, *, is_tiny: bool = False) -> dict[str, Any]:
    """The published vision configuration, cut to ``depth`` blocks with its special blocks spread
    alike.
    """
    sizes = dict(_PUBLISHED[family])
    full = sizes["depth"]
    depth = depth or full
    if "deepstack_visual_indexes" in sizes:
        levels = [i * depth // full for i in sizes["deepstack_visual_indexes"]]
        sizes["deepstack_visual_indexes"] = sorted(set(levels))
    if "fullatt_block_indexes" in sizes:
        blocks = [max((i + 1) * depth // full - 1, 0) for i in sizes["fullatt_block_indexes"]]
        sizes["fullatt_block_indexes"] = sorted(set(blocks))
    return sizes | {"depth": depth} | (_TINY[family] if is_tiny else {})


def make_tower(
    family: str, *, depth: int | None, device: torch.device, is_tiny: bool = False
) -> nn.Module:
    """A tower with seeded weights rounded to bf16; its tables stay float32, as a loaded one's."""
    import transformers
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
    from transformers.models.qwen2_vl import modeling_qwen2_vl
    from transformers.models.qwen3_vl import modeling_qwen3_vl

    ALL_ATTENTION_FUNCTIONS[FLASH] = _flash
    config_class, tower_class = {
        "qwen3_vl": (transformers.Qwen3VLConfig, modeling_qwen3_vl.Qwen3VLVisionModel),
        "qwen2_5_vl": (
            transformers.Qwen2_5_VLConfig,
            modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel,
        ),
        "qwen2_vl": (
            transformers.Qwen2VLConfig,
            modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel,
        ),
    }[family]
    config = config_class(vision_config=vision_sizes(family, depth, is_tiny=is_tiny)).vision_config
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        tower: nn.Module = tower_class(config).eval()
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            if parameter.dim() == 1 and name.endswith("bias"):
                parameter.normal_(std=0.02)
            parameter.data = parameter.data.to(torch.bfloat16)
    tower.requires_grad_(False)
    return tower


def configs_of(tower: nn.Module) -> list[Any]:
    """The configuration objects of a tower's modules, each once."""
    found = {id(c): c for m in tower.modules() if (c := getattr(m, "config", None)) is not None}
    return list(found.values())


def use_attention(configs: Sequence[Any], name: str) -> None:
    """``configs``: from ``configs_of``; ``name``: sdpa, eager or flash."""
    for config in configs:
        config._attn_implementation_internal = FLASH if name == "flash" else name


def run(tower: nn.Module, pixel_values: Tensor, grid_thw: Tensor) -> list[Tensor]:
    """Embeddings, then DeepStack levels."""
    result = tower(pixel_values, grid_thw)
    return [result.pooler_output, *(getattr(result, "deepstack_features", None) or ())]


def _flash(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """(1, heads, T, head_dim) each, packed segments."""
    rows = [x.squeeze(0).transpose(0, 1).contiguous() for x in (q, k, v)]
    if not q.is_cuda:
        assert cu_seq_lens_q is not None
        return _each_segment(rows, cu_seq_lens_q.tolist()).unsqueeze(0), None
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(*rows, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    return out.unsqueeze(0), None


def _each_segment(rows: Sequence[Tensor], boundaries: Sequence[int]) -> Tensor:
    """The same on the CPU, which has no varlen kernel; for trial runs of the benchmarks."""
    parts = []
    for start, end in pairwise(boundaries):
        if end > start:
            q, k, v = (x[start:end].transpose(0, 1)[None] for x in rows)
            out = nn.functional.scaled_dot_product_attention(q, k, v)
            parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def metadata(tower: nn.Module, grid_thw: Tensor) -> dict[str, Any]:
    """What the tower computes from the grids before its blocks, made outside of the call: with it
    a trace holds no read of a device value.
    """
    from transformers import vision_utils as utils

    config: Any = tower.config
    offsets = utils.get_vision_cu_seqlens(grid_thw)
    longest = int((offsets[1:] - offsets[:-1]).max())
    found: dict[str, Any] = {"cu_seqlens": offsets, "max_seqlen": longest}
    found["position_ids"] = utils.get_vision_position_ids(grid_thw, config.spatial_merge_size)
    if hasattr(tower, "num_grid_per_side"):
        indices, weights = utils.get_vision_interpolation_indices_and_weights(
            grid_thw,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=config.spatial_merge_size,
        )
        found |= {"interp_indices": indices, "interp_weights": weights}
    return found


def compiled(
    tower: nn.Module, grid_thw: Tensor, mode: str, *, backend: str = "inductor"
) -> Callable[[Tensor], Tensor]:
    """``torch.compile`` over the tower for one batch of grids, metadata prepared outside."""
    known = metadata(tower, grid_thw)
    options: dict[str, Any] = {"dynamic": False, "backend": backend}
    if backend == "inductor":
        options["mode"] = mode

    def call(pixel_values: Tensor) -> Tensor:
        embeddings: Tensor = tower(pixel_values, grid_thw, **known).pooler_output
        return embeddings

    made: Callable[[Tensor], Tensor] = torch.compile(call, **options)
    return made
