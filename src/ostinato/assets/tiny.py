"""A tiny vision encoder with seeded random weights: patch embedding and two encoder blocks.

It stands in for a real encoder where a demonstration must need no download. It knows nothing of
recordings. Shapes: H, W pixels; N = (H / 16) * (W / 16) patches; C = 96 channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

PATCH = 16
WIDTH = 96
NUM_HEADS = 4
NUM_BLOCKS = 2


def position_code(num_rows: int, num_columns: int, device: torch.device) -> Tensor:
    """Sines and cosines of row and column, ``(N, C)``; depends on sizes only."""
    num_frequencies = WIDTH // 4
    steps = torch.arange(num_frequencies, device=device, dtype=torch.float32)
    frequencies = torch.exp(steps * (-np.log(1e4) / num_frequencies))
    rows = torch.arange(num_rows, device=device, dtype=torch.float32)[:, None] * frequencies
    columns = torch.arange(num_columns, device=device, dtype=torch.float32)[:, None] * frequencies
    row_code = torch.cat([rows.sin(), rows.cos()], -1)[:, None].expand(-1, num_columns, -1)
    column_code = torch.cat([columns.sin(), columns.cos()], -1)[None].expand(num_rows, -1, -1)
    return torch.cat([row_code, column_code], -1).reshape(-1, WIDTH)


class Block(nn.Module):
    """Attention and a feed-forward layer, both pre-norm and residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_NC: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x_NC)).view(-1, 3, NUM_HEADS, WIDTH // NUM_HEADS)
        q, k, v = qkv.permute(1, 2, 0, 3).unbind(0)  # each (heads, N, C / heads)
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        x_NC = x_NC + self.out(mixed.transpose(0, 1).reshape(-1, WIDTH))
        fed: Tensor = self.down(F.gelu(self.up(self.norm2(x_NC))))
        return x_NC + fed


class TinyEncoder(nn.Module):
    """``(3, H, W)`` floats in -1..1 to ``(N, C)``; H and W are multiples of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, pixels: Tensor) -> Tensor:
        _, height, width = pixels.shape
        rows, columns = height // PATCH, width // PATCH
        patches = pixels.view(3, rows, PATCH, columns, PATCH).permute(1, 3, 0, 2, 4)
        x_NC = self.embed(patches.reshape(rows * columns, -1))
        x_NC = x_NC + position_code(rows, columns, pixels.device)
        for block in self.blocks:
            x_NC = block(x_NC)
        return self.norm(x_NC)  # type: ignore[no-any-return]


def make_tiny_encoder(device: str = "cpu", *, seed: int = 0) -> TinyEncoder:
    """The same weights on every machine: drawn on the CPU from a generator of their own."""
    with torch.device("meta"):
        model = TinyEncoder()
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                fan_in = parameter.shape[-1]
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
    return model.to(device).eval().requires_grad_(False)


def pixels_from_image(image: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """``(height, width, 3)`` bytes to ``(3, H, W)`` floats, cut to whole patches."""
    height, width = (size // PATCH * PATCH for size in image.shape[:2])
    cut = np.ascontiguousarray(image[:height, :width].transpose(2, 0, 1), dtype=np.float32)
    return torch.from_numpy(cut).div_(127.5).sub_(1.0)
