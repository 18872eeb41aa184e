"""What users have today: JPEG bytes -> patches by transformers' ``Pil`` processor."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ostinato.vision.preprocess import ImageConfig


def make(config: ImageConfig) -> Callable[[bytes], NDArray[np.float32]]:
    """A function of one JPEG, with the sizes and means of ``config``."""
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels},
        patch_size=config.patch_size,
        temporal_patch_size=config.temporal_patch_size,
        merge_size=config.merge_size,
        image_mean=list(config.image_mean),
        image_std=list(config.image_std),
    )

    def preprocess(data: bytes) -> NDArray[np.float32]:
        image = Image.open(io.BytesIO(data))
        values: NDArray[np.float32] = processor(image, return_tensors="np")["pixel_values"]
        return values

    return preprocess
