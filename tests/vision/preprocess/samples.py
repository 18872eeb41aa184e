"""The published processors to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ostinato.vision.preprocess import ImageConfig, Patches


def reference(config: ImageConfig, **overrides: Any) -> Qwen2VLImageProcessorPil:
    """The published processor of ``config``."""
    size = {"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels}
    names = ("patch_size", "merge_size", "temporal_patch_size", "rescale_factor")
    values = {name: getattr(config, name) for name in names}
    means = {"image_mean": list(config.image_mean), "image_std": list(config.image_std)}
    return Qwen2VLImageProcessorPil(**{"size": size, **values, **means, **overrides})


def assert_equal_bytes(ours: Patches, processor: Qwen2VLImageProcessorPil, image: Any) -> None:
    """Same grid, same bytes."""
    theirs = processor(image, return_tensors="np")
    assert ours.grid_thw == tuple(theirs["image_grid_thw"][0].tolist())
    assert ours.pixel_values.dtype == np.float32
    assert ours.pixel_values.shape == theirs["pixel_values"].shape
    assert ours.pixel_values.tobytes() == theirs["pixel_values"].tobytes()
