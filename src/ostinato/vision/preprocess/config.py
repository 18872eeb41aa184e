"""What a checkpoint says about its images and videos: frozen records, and how to read them.

The values come from ``preprocessor_config.json``, ``video_preprocessor_config.json`` or the
combined ``processor_config.json`` of a checkpoint. Where a file or a value is missing, the
family's published default stands (the class defaults of transformers' processors; for Qwen3-VL's
images, which have no class of their own, the values of its published checkpoints).
Nothing is fetched here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ostinato.errors import ConfigError

Family = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
_Config = TypeVar("_Config", bound="PatchConfig")

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
_BICUBIC = 3


@dataclass(frozen=True)
class PatchConfig:
    """How pixels become rows. Sizes in pixels (``temporal_patch_size`` in frames)."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    rescale_factor: float
    min_pixels: int
    max_pixels: int

    def __post_init__(self) -> None:
        for name in ("patch_size", "temporal_patch_size", "merge_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 <= self.min_pixels <= self.max_pixels:
            raise ConfigError(
                f"need 1 <= min_pixels <= max_pixels, got {self.min_pixels} and {self.max_pixels}"
            )
        if 0.0 in self.image_std:
            raise ConfigError(f"image_std must not contain 0, got {self.image_std}")

    @property
    def factor(self) -> int:
        """Both sides of a resized frame are multiples of this many pixels."""
        return self.patch_size * self.merge_size

    @property
    def row_width(self) -> int:
        """Values in one patch row: channels x frames x height x width."""
        return 3 * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True)
class ImageConfig(PatchConfig):
    """Images. ``min_pixels`` and ``max_pixels`` bound height x width after resizing."""


@dataclass(frozen=True)
class VideoConfig(PatchConfig):
    """Videos. The pixel bounds hold per frame (``qwen2``) or for the whole clip (``qwen3``)."""

    rule: Literal["qwen2", "qwen3"]
    fps: float
    min_frames: int
    max_frames: int
    cap_pixels_per_frame: bool
    max_video_tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_frames <= self.max_frames:
            raise ConfigError(
                f"need 1 <= min_frames <= max_frames, got {self.min_frames} and {self.max_frames}"
            )
        if not self.fps > 0:
            raise ConfigError(f"fps must be positive, got {self.fps}")


@dataclass(frozen=True)
class PreprocessConfig:
    """Everything that decides which patches an image or video becomes; printable and hashable."""

    image: ImageConfig
    video: VideoConfig


_IMAGE_2 = ImageConfig(
    patch_size=14,
    temporal_patch_size=2,
    merge_size=2,
    image_mean=_CLIP_MEAN,
    image_std=_CLIP_STD,
    rescale_factor=1 / 255,
    min_pixels=56 * 56,
    max_pixels=28 * 28 * 1280,
)
_VIDEO_2 = VideoConfig(
    patch_size=14,
    temporal_patch_size=2,
    merge_size=2,
    image_mean=_CLIP_MEAN,
    image_std=_CLIP_STD,
    rescale_factor=1 / 255,
    min_pixels=128 * 28 * 28,
    max_pixels=28 * 28 * 768,
    rule="qwen2",
    fps=2.0,
    min_frames=4,
    max_frames=768,
    cap_pixels_per_frame=False,
    max_video_tokens=128_000,
)
_IMAGE_3 = replace(
    _IMAGE_2,
    patch_size=16,
    image_mean=_HALF,
    image_std=_HALF,
    min_pixels=65_536,
    max_pixels=16_777_216,
)
_VIDEO_3 = replace(
    _VIDEO_2,
    patch_size=16,
    image_mean=_HALF,
    image_std=_HALF,
    min_pixels=128 * 32 * 32,
    max_pixels=32 * 32 * 768,
    rule="qwen3",
    max_video_tokens=768,
)
_DEFAULTS: dict[str, PreprocessConfig] = {
    "qwen2_vl": PreprocessConfig(_IMAGE_2, _VIDEO_2),
    "qwen2_5_vl": PreprocessConfig(_IMAGE_2, _VIDEO_2),
    "qwen3_vl": PreprocessConfig(_IMAGE_3, _VIDEO_3),
}


def default_config(family: str) -> PreprocessConfig:
    """The published defaults of ``family``; ``ConfigError`` for a family that is not known."""
    if family not in _DEFAULTS:
        raise ConfigError(f"unknown vision family {family!r}; known: {', '.join(get_args(Family))}")
    return _DEFAULTS[family]


def load_config(directory: str | Path, family: str) -> PreprocessConfig:
    """Read the processor files of a checkpoint directory, over the defaults of ``family``.

    Raises ``ConfigError`` for a file that is no JSON object, and for a value that asks for a step
    that does not exist here (another filter, no resizing).
    """
    defaults = default_config(family)
    root = Path(directory)
    both = _read_object(root / "processor_config.json")
    image = both.get("image_processor") or {}
    video = both.get("video_processor") or {}
    image = {**image, **_read_object(root / "preprocessor_config.json")}
    video = {**video, **_read_object(root / "video_preprocessor_config.json")}
    return PreprocessConfig(_overlay(defaults.image, image), _overlay(defaults.video, video))


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _overlay(base: _Config, content: Mapping[str, Any]) -> _Config:
    """``base`` with the values that a processor file states; keys without effect are skipped."""
    if content.get("do_resize") is False:
        raise ConfigError("do_resize=false is not supported: patches need a multiple of the factor")
    if content.get("resample", _BICUBIC) not in (_BICUBIC, None):
        raise ConfigError(f"resample must be {_BICUBIC} (bicubic), got {content['resample']}")
    known = {field.name for field in fields(base)} - {"rule"}
    values = {k: v for k, v in content.items() if k in known and v is not None}
    size = content.get("size") or {}
    for edge, name in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if size.get(edge) is not None:
            values.setdefault(name, size[edge])
    for name in ("image_mean", "image_std"):
        if name in values:
            values[name] = _triple(name, values[name])
    if content.get("do_rescale") is False:
        values["rescale_factor"] = 1.0
    if content.get("do_normalize") is False:
        values |= {"image_mean": (0.0, 0.0, 0.0), "image_std": (1.0, 1.0, 1.0)}
    return replace(base, **values)


def _triple(name: str, value: object) -> tuple[float, float, float]:
    if isinstance(value, (int, float)):
        return (float(value),) * 3
    if isinstance(value, (list, tuple)) and len(value) == 3:
        return (float(value[0]), float(value[1]), float(value[2]))
    raise ConfigError(f"{name} must be a number or three numbers, got {value!r}")
