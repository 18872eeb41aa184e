"""The published rules for which frames of a video are looked at, and when they were shown.

Qwen2-VL and Qwen2.5-VL: evenly from the start, a whole number of temporal patches. Qwen3-VL:
evenly from the first to the last frame, ends included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .config import VideoConfig
from .refuse import refuse

ASSUMED_FPS = 24.0  # what the published processors assume where a rate is not known


@dataclass(frozen=True)
class Sampling:
    """Per call; ``None``: the checkpoint's value. ``fps`` and ``num_frames`` exclude each other."""

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None


def sample_frames(
    config: VideoConfig, total_frames: int, source_fps: float, sampling: Sampling = Sampling()
) -> list[int]:
    """Indices of the frames to take, rising, each in ``[0, total_frames)``."""
    if total_frames < 1:
        raise refuse("min-frames", f"a video needs at least 1 frame, got {total_frames}")
    if not (math.isfinite(source_fps) and source_fps > 0):
        raise refuse("frame-rate", f"the video's rate must be positive, got {source_fps}")
    _check(sampling)
    lowest = config.min_frames if sampling.min_frames is None else sampling.min_frames
    highest = config.max_frames if sampling.max_frames is None else sampling.max_frames
    if lowest > highest:
        if sampling.min_frames is not None and sampling.max_frames is not None:
            raise refuse("frame-bounds", f"min_frames {lowest} is larger than max_frames {highest}")
        if sampling.max_frames is not None:
            lowest = highest
        else:
            highest = lowest
    if sampling.num_frames is not None and sampling.num_frames > total_frames:
        raise refuse(
            "num-frames", f"num_frames {sampling.num_frames} of a video with {total_frames} frames"
        )
    fps = config.fps if sampling.fps is None else sampling.fps
    wanted = total_frames / source_fps * fps
    if config.rule == "qwen2":
        return _from_start(config, total_frames, wanted, sampling.num_frames, lowest, highest)
    count = sampling.num_frames or min(max(int(wanted), lowest), highest, total_frames)
    return [int(i) for i in np.linspace(0, total_frames - 1, count).round()]


def _from_start(
    config: VideoConfig,
    total: int,
    wanted: float,
    num_frames: int | None,
    lowest: int,
    highest: int,
) -> list[int]:
    temporal = config.temporal_patch_size
    if num_frames is not None:
        count = round(num_frames / temporal) * temporal
    else:
        highest = math.floor(min(highest, total) / temporal) * temporal
        count = math.floor(min(max(wanted, lowest), highest, total) / temporal) * temporal
    if count > total or count < temporal:
        # Fewer frames than one temporal patch: take them all, the last one is repeated.
        count = min(total, temporal)
    # torch's arange in its default dtype is the published rule, with its rounding: at times it
    # names a frame after the last one, which a decoder never shows.
    places = torch.arange(0, total, total / count).int().tolist()
    return [place for place in places if place < total]


def frame_times(
    indices: Sequence[int], source_fps: float, temporal_patch_size: int
) -> tuple[float, ...]:
    """Seconds of each temporal patch: the middle between its first and its last frame."""
    padded = list(indices)
    padded += [padded[-1]] * (-len(padded) % temporal_patch_size)
    return tuple(
        (padded[i] / source_fps + padded[i + temporal_patch_size - 1] / source_fps) / 2
        for i in range(0, len(padded), temporal_patch_size)
    )


def seconds_per_grid(
    num_sampled: int, total_frames: int, source_fps: float, temporal_patch_size: int
) -> float:
    """Seconds between two temporal patches, as Qwen2.5-VL's positions want it."""
    return temporal_patch_size / (num_sampled / total_frames * source_fps)


def _check(sampling: Sampling) -> None:
    if sampling.fps is not None and sampling.num_frames is not None:
        raise refuse("frame-rate", "fps and num_frames exclude each other; both were given")
    if sampling.fps is not None and not (math.isfinite(sampling.fps) and sampling.fps > 0):
        raise refuse("frame-rate", f"fps must be positive and finite, got {sampling.fps}")
    for name in ("num_frames", "min_frames", "max_frames"):
        value = getattr(sampling, name)
        if value is not None and (isinstance(value, bool) or value < 1):
            raise refuse("frame-bounds", f"{name} must be an integer of at least 1, got {value!r}")
