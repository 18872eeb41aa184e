"""The published video rules, taken out of transformers' source.

Its video processors cannot be imported without torchvision; their rules are plain functions of
integers, so they are cut out of the installed files and run alone.
"""

from __future__ import annotations

import ast
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers

_FILES = {
    "qwen2": "models/qwen2_vl/video_processing_qwen2_vl.py",
    "qwen3": "models/qwen3_vl/video_processing_qwen3_vl.py",
    "prompt": "models/qwen3_vl/processing_qwen3_vl.py",
}


def published(rule: str, name: str) -> Callable[..., Any]:
    """The function or method ``name`` of a published file; methods take any ``self``."""
    path = Path(transformers.__file__).parent / _FILES[rule]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for argument in node.args.args + node.args.kwonlyargs:
                argument.annotation = None
            node.returns = None
            scope = {"math": math, "np": np, "torch": torch, "logger": logging.getLogger()}
            exec(compile(ast.Module([node], []), str(path), "exec"), scope)
            return scope[name]  # type: ignore[return-value]
    raise AssertionError(f"{name} is not in {path}")


def published_sample(config: Any, total: int, rate: float, **options: Any) -> list[int]:
    """Frame indices by the published rule, without those that no decoder shows."""
    own = SimpleNamespace(
        num_frames=None,
        fps=config.fps,
        temporal_patch_size=config.temporal_patch_size,
        min_frames=config.min_frames,
        max_frames=config.max_frames,
    )
    metadata = SimpleNamespace(total_num_frames=total, fps=rate)
    indices = published(config.rule, "sample_frames")(own, metadata, **options)
    return [int(i) for i in indices if i < total]


def published_size(
    config: Any, num_frames: int, height: int, width: int, low: int, high: int
) -> tuple[int, int]:
    """Frame size by the published rule, cap included."""
    factor, temporal = config.factor, config.temporal_patch_size
    rule = published(config.rule, "smart_resize")
    seen: dict[str, Any] = {}

    class Base:
        def resize(self, image: Any, size: Any, resample: Any) -> None:
            seen.update(size=(size.height, size.width))

    scope = published(config.rule, "resize")
    scope.__globals__.update(
        smart_resize=rule, SizeDict=lambda **k: SimpleNamespace(**k), super=lambda: Base()
    )
    scope(
        SimpleNamespace(max_video_tokens=config.max_video_tokens),
        SimpleNamespace(shape=(1, num_frames, 3, height, width)),
        SimpleNamespace(shortest_edge=low, longest_edge=high),
        None,
        factor,
        temporal,
        config.cap_pixels_per_frame,
    )
    return seen["size"]  # type: ignore[no-any-return]
