"""The least time that a tower's call can take: its weights read once, or its products computed.

Counts of the published sizes, no measurement. The ceilings are what an H200 reached in copies and
in large bf16 products. Attention counts one image; activations that are read and written count as
nothing, so the floor lies below what any sequence of kernels can do.
"""

from __future__ import annotations

from ostinato.vision.contract import VisionConfig
from ostinato.vision.fields import Fields
from ostinato.vision.registry import find_family

BYTES_PER_S = 4.3e12
FLOPS_PER_S = 790e12
BYTES_OF_WEIGHT = 2


def published_config(family: str) -> VisionConfig:
    """The sizes that the published configuration class defaults to."""
    defaults = {"hidden_size": 1280} if family == "qwen2_5_vl" else {}
    return find_family(family).read_config(Fields(defaults))


def block_weights(config: VisionConfig) -> int:
    """Numbers in the matrices of one block."""
    num_matrices = 3 if config.activation == "silu" else 2
    return 4 * config.width**2 + num_matrices * config.width * config.mlp_width


def merger_weights(config: VisionConfig) -> int:
    """Numbers in the matrices of one merger."""
    merged = config.width * config.merge_unit
    return merged * (merged + config.out_width)


def num_weights(config: VisionConfig) -> int:
    """Numbers in all matrices that a call reads."""
    mergers = 1 + len(config.deepstack_blocks)
    patches = config.patch_width * config.width
    return config.depth * block_weights(config) + mergers * merger_weights(config) + patches


def flops(config: VisionConfig, num_patches: int) -> float:
    """Operations of all products of one image of ``num_patches``."""
    mergers = (1 + len(config.deepstack_blocks)) * merger_weights(config) / config.merge_unit
    matrices = config.depth * block_weights(config) + mergers + config.patch_width * config.width
    full = config.depth
    window = num_patches
    if config.window_side:
        full = len(config.full_attention_blocks)
        window = min(num_patches, config.window_side**2 * config.merge_unit)
    keys = full * num_patches + (config.depth - full) * window
    return num_patches * (2.0 * matrices + 4.0 * keys * config.width)


def floor_ms(config: VisionConfig, num_patches: int) -> float:
    """The larger of both times."""
    reading = num_weights(config) * BYTES_OF_WEIGHT / BYTES_PER_S
    return 1e3 * max(reading, flops(config, num_patches) / FLOPS_PER_S)
