"""Images and videos of every kind -> patches for the towers, byte for byte like the published
processors, without torchvision and without transformers."""

from __future__ import annotations

from .config import ImageConfig, PreprocessConfig, VideoConfig, default_config, load_config
from .decode import Limits
from .items import ImageItem, ImageOptions, VideoItem, VideoOptions
from .patches import Patches
from .preprocessor import Preprocessor

__all__ = [
    "ImageConfig",
    "ImageItem",
    "ImageOptions",
    "Limits",
    "Patches",
    "PreprocessConfig",
    "Preprocessor",
    "VideoConfig",
    "VideoItem",
    "VideoOptions",
    "default_config",
    "load_config",
]
