"""The encoder of the video VAE for one frame: windowed attention on four grids, then latents.

A frame alone needs no causal time axis: windows are two-dimensional and a temporal merge pairs the
frame with its own copy. Clips and the decoder are not here; a policy needs neither. Shapes: H, W
cells of a stage's grid, C its width.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.kernels.neighbourhood_attention import neighbourhood_attention
from ostinato.kernels.norm import add_layer_norm, layer_norm
from ostinato.kernels.patch_merge import patch_merge
from ostinato.kernels.rope import rope
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.linear import Linear, unset
from ostinato.layers.norm import LayerNorm
from ostinato.layers.patch import PatchEmbed

PATCH = 4
EPS = 1e-5
Tables = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class VaeConfig:
    """Sizes; the defaults are the published ones. ``temporal``: stages that merge frames."""

    z_dim: int = 96
    embed_dim: int = 256
    depths: tuple[int, ...] = (1, 4, 8, 8)
    num_heads: tuple[int, ...] = (4, 8, 16, 32)
    window: int = 5
    temporal: tuple[bool, ...] = (False, False, True, True)

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads[0]

    def width(self, stage: int) -> int:
        return int(self.embed_dim * 2**stage)

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Rows and columns of each stage for a canvas of so many pixels."""
        grids = [(ceil(height / PATCH), ceil(width / PATCH))]
        for _ in self.depths[1:]:
            grids.append((ceil(grids[-1][0] / 2), ceil(grids[-1][1] / 2)))
        return grids


class Attention(nn.Module):
    """Heads normalised without a weight, rotated, attending to a window of cells."""

    def __init__(self, width: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.head_dim = width // num_heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x_HWC: Tensor, tables: Tables) -> Tensor:
        qkv = rope(
            self.qkv(x_HWC).flatten(0, 1),
            *tables,
            heads=self.num_heads,
            head_dim=self.head_dim,
            eps=EPS,
        )
        q, k, v = (t.view(1, *x_HWC.shape[:2], self.num_heads, self.head_dim) for t in qkv)
        mixed = neighbourhood_attention(q, k, v, window=self.window, scale=self.head_dim**-0.5)
        projected: Tensor = self.proj(mixed[0].flatten(2))
        return projected


class Mlp(nn.Module):
    """Gated, without biases; the inner width is two thirds of four widths, rounded up to 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 64 * ceil(int(8 * width / 3) / 64)
        self.gate_up_proj = Linear(width, 2 * inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(swiglu(self.gate_up_proj(x)))
        return down


class Rows(NamedTuple):
    """Cells of a grid as a sum that is not made yet, so that one kernel adds and normalises.

    ``x_HWC``: (H, W, C); ``more_HWC``: to be added to it, if there is any.
    """

    x_HWC: Tensor
    more_HWC: Tensor | None = None

    def summed(self) -> Tensor:
        return self.x_HWC if self.more_HWC is None else self.x_HWC + self.more_HWC

    def summed_and_normed(self, norm: LayerNorm) -> tuple[Tensor, Tensor]:
        """The norm of the sum, and the sum."""
        if self.more_HWC is None:
            return _normed(norm, self.x_HWC), self.x_HWC
        return add_layer_norm(self.x_HWC, self.more_HWC, norm.weight, norm.bias, norm.eps)


class Block(nn.Module):
    """``x += attn(norm1(x)); x += mlp(norm2(x))``; the last sum is left to what comes next."""

    def __init__(self, width: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width, eps=EPS)
        self.attn = Attention(width, num_heads, window)
        self.norm2 = LayerNorm(width, eps=EPS)
        self.mlp = Mlp(width)

    def forward(self, rows: Rows, tables: Tables) -> Rows:
        normed, x_HWC = rows.summed_and_normed(self.norm1)
        normed, x_HWC = Rows(x_HWC, self.attn(normed, tables)).summed_and_normed(self.norm2)
        return Rows(x_HWC, self.mlp(normed))


class PatchMerging(nn.Module):
    """Joins 2x2 cells and doubles the width; odd edges are padded with zeros first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * width, eps=EPS)
        self.reduction = Linear(4 * width, 2 * width, bias=False)

    def forward(self, x_HWC: Tensor) -> Tensor:
        merged: Tensor = self.reduction(_normed(self.norm, patch_merge(x_HWC[None])[0]))
        return merged


class TemporalMerging(nn.Module):
    """Joins two frames; of one frame, the frame and its copy, whose mean it is itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(2 * width, eps=EPS)
        self.reduction = Linear(2 * width, width, bias=False)

    def forward(self, x_HWC: Tensor) -> Tensor:
        pair = torch.cat((x_HWC, x_HWC), dim=-1)
        merged: Tensor = self.reduction(_normed(self.norm, pair)) + x_HWC
        return merged


class VaeEncoder(nn.Module):
    """Under the published names below ``model.``: ``encoder.…`` and ``z_normalizer.…``."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Module()
        self.encoder.patch_embed = PatchEmbed((3, 1, PATCH, PATCH), config.embed_dim, bias=True)
        self.encoder.features = self._features()
        self.encoder.proj = Linear(config.width(len(config.depths) - 1), 2 * config.z_dim)
        self.z_normalizer = nn.Module()
        self.z_normalizer.running_mean = unset(config.z_dim)
        self.z_normalizer.running_var = unset(config.z_dim)

    def _features(self) -> nn.ModuleList:
        """Per stage: blocks, a merge of cells but for the last, a block and a merge of frames."""
        config, features = self.config, nn.ModuleList()
        last = len(config.depths) - 1
        for stage, (depth, heads) in enumerate(zip(config.depths, config.num_heads, strict=True)):
            width = config.width(stage)
            blocks = (Block(width, heads, config.window) for _ in range(depth))
            features.append(nn.ModuleList(blocks))
            if stage < last:
                features.append(PatchMerging(width))
                width, heads = config.width(stage + 1), config.num_heads[stage + 1]
            if config.temporal[stage]:
                features.append(Block(width, heads, config.window))
                features.append(TemporalMerging(width))
        return features

    def forward(self, canvas: Tensor, tables: tuple[Tables, ...]) -> Tensor:
        """Normalised latent means (rows, columns, z_dim) of ``canvas`` (1, 3, H, W) in [-1, 1].

        ``tables``: what ``vae_tables`` makes for this canvas. The model's dtype throughout.
        """
        encoder: Any = self.encoder
        x = encoder.patch_embed(_patches(canvas))
        stage = 0
        height, width = self.config.grids(*canvas.shape[2:])[0]
        rows = Rows(x.view(height, width, -1))
        for feature in encoder.features:
            if isinstance(feature, nn.ModuleList):
                for block in feature:
                    rows = block(rows, tables[stage])
            elif isinstance(feature, Block):
                rows = feature(rows, tables[stage])
            else:
                stage += isinstance(feature, PatchMerging)
                rows = Rows(feature(rows.summed()))
        mean: Tensor = encoder.proj(rows.summed())[..., : self.config.z_dim]
        normalizer: Any = self.z_normalizer
        latents: Tensor = (mean - normalizer.running_mean) / normalizer.running_var.sqrt()
        return latents


def vae_tables(
    config: VaeConfig, canvas_hw: tuple[int, int], *, device: torch.device, dtype: torch.dtype
) -> tuple[Tables, ...]:
    """Per stage cosines and sines (H * W, head_dim / 2) of ``dtype``: constants of a canvas.

    Four axes (time, row, column, unused) of head_dim / 8 frequencies
    ``256^(-2 j / (head_dim / 4))``, rounded to ``dtype`` as published checkpoints store them.
    """
    num = config.head_dim // 8
    frequencies = 256.0 ** (-2 * torch.arange(num, dtype=torch.float32) / (config.head_dim / 4))
    frequencies = frequencies.to(dtype).float()
    stages = []
    for height, width in config.grids(*canvas_hw):
        y = torch.arange(height, dtype=torch.float32)[:, None, None].expand(-1, width, 1)
        x = torch.arange(width, dtype=torch.float32)[None, :, None].expand(height, -1, 1)
        still = torch.zeros(height, width, num)
        angles = torch.cat((still, y * frequencies, x * frequencies, still), dim=-1).flatten(0, 1)
        stages.append((angles.cos().to(device, dtype), angles.sin().to(device, dtype)))
    return tuple(stages)


def _normed(norm: LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, norm.eps)


def _patches(canvas: Tensor) -> Tensor:
    """(cells, 3 * 4 * 4) in reading order; the right and bottom edges are padded with zeros."""
    height, width = canvas.shape[2:]
    padded = F.pad(canvas[0], (0, -width % PATCH, 0, -height % PATCH))
    cells = padded.unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH))  # 3, H, 4, W, 4
    rows: Tensor = cells.permute(1, 3, 0, 2, 4).flatten(2).flatten(0, 1)
    return rows
