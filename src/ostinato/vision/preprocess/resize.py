"""The published resize rules: which size a frame of a given size is brought to. Integers only.

Both sides become multiples of ``factor`` (patch x merge), the area lands within the pixel bounds
where the ratio allows it, and the ratio is kept as closely as that permits.
"""

from __future__ import annotations

import math

from .config import PatchConfig, VideoConfig
from .refuse import refuse

MAX_ASPECT_RATIO = 200


def pixel_bounds(
    config: PatchConfig, min_pixels: int | None, max_pixels: int | None
) -> tuple[int, int]:
    """The bounds of one call: what is given stands, the other comes from ``config``.

    Where one value is given alone and crosses the configured other one, the given one wins and
    the other is moved to it.
    """
    for name, value in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise refuse("pixel-bounds", f"{name} must be an integer of at least 1, got {value!r}")
    if min_pixels is not None and max_pixels is not None:
        if min_pixels > max_pixels:
            raise refuse(
                "pixel-bounds", f"min_pixels {min_pixels} is larger than max_pixels {max_pixels}"
            )
        return min_pixels, max_pixels
    if min_pixels is not None:
        return min_pixels, max(config.max_pixels, min_pixels)
    if max_pixels is not None:
        return min(config.min_pixels, max_pixels), max_pixels
    return config.min_pixels, config.max_pixels


def check_size(height: int, width: int, *, max_decoded_pixels: int) -> None:
    """Refuse sizes that cannot or must not be decoded. Call it before decoding."""
    if height < 1 or width < 1:
        raise refuse("zero-size", f"height and width must be at least 1, got {height} x {width}")
    if height * width > max_decoded_pixels:
        raise refuse(
            "max-decoded-pixels",
            f"{height} x {width} is {height * width} pixels, the limit is {max_decoded_pixels}",
        )
    check_ratio(height, width)


def check_ratio(height: int, width: int) -> None:
    """Refuse shapes longer than the published rule allows."""
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise refuse(
            "aspect-ratio",
            f"the longer side may be at most {MAX_ASPECT_RATIO} times the shorter, "
            f"got {height} x {width}",
        )


def image_size(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Height and width that an image (or a frame, by Qwen2-VL's rule) is resized to."""
    check_ratio(height, width)
    return _fit(height, width, 1, 1, factor, min_pixels, max_pixels)


def video_size(
    config: VideoConfig,
    num_frames: int,
    height: int,
    width: int,
    *,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """Height and width that every frame of a clip is resized to."""
    factor, temporal = config.factor, config.temporal_patch_size
    max_pixels = _capped(config, num_frames, min_pixels, max_pixels)
    if config.rule == "qwen2":
        return image_size(
            height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels
        )
    if num_frames < temporal:
        raise refuse("min-frames", f"a video needs at least {temporal} frames, got {num_frames}")
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_ratio(height, width)
    rounded_frames = round(num_frames / temporal) * temporal
    return _fit(height, width, num_frames, rounded_frames, factor, min_pixels, max_pixels)


def _fit(
    height: int,
    width: int,
    num_frames: int,
    rounded_frames: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    new_height = round(height / factor) * factor
    new_width = round(width / factor) * factor
    pixels = num_frames * height * width
    if rounded_frames * new_height * new_width > max_pixels:
        beta = math.sqrt(pixels / max_pixels)
        new_height = max(factor, math.floor(height / beta / factor) * factor)
        new_width = max(factor, math.floor(width / beta / factor) * factor)
    elif rounded_frames * new_height * new_width < min_pixels:
        beta = math.sqrt(min_pixels / pixels)
        new_height = math.ceil(height * beta / factor) * factor
        new_width = math.ceil(width * beta / factor) * factor
    return new_height, new_width


def _capped(config: VideoConfig, num_frames: int, min_pixels: int, max_pixels: int) -> int:
    """``max_pixels`` under the optional cap that gives each frame an even share of a budget."""
    if not config.cap_pixels_per_frame:
        return max_pixels
    token_pixels = config.factor**2
    floor = int(min_pixels * 1.05)
    if config.rule == "qwen2":
        total = int(config.max_video_tokens * token_pixels * 0.9)
        return max(min(max_pixels, total * config.temporal_patch_size // num_frames), floor)
    share = min(config.max_video_tokens * token_pixels, max_pixels // num_frames)
    return max(share, floor) * num_frames
