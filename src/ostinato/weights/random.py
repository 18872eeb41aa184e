"""Seeded random weights for shipped tiny models: the same values on every machine."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def random_tensors(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype | None,
    draw_on: torch.device | str = "cpu",
) -> Iterator[tuple[str, Tensor]]:
    """Each name with a tensor that depends on ``seed`` and the name only, float32 by default.

    Matrices keep the scale of what they multiply; vectors named ``….weight`` (norms) lie around 1,
    other vectors around 0.
    """
    for name, shape in shapes.items():
        generator = torch.Generator(draw_on).manual_seed(seed * 0x10001 + zlib.crc32(name.encode()))
        tensor = torch.randn(shape, generator=generator, dtype=torch.float32, device=draw_on)
        if len(shape) > 1:
            tensor /= tensor[0].numel() ** 0.5
        else:
            is_scale = name.endswith("weight")
            tensor = tensor * 0.1 + (1.0 if is_scale else 0.0)
        yield name, tensor.to(device=device, dtype=dtype or torch.float32)
