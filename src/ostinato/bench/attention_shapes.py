"""Segmentations that vision towers meet: what attention is timed and checked on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ostinato.kernels.segment_attention.call import Call


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """``capacity``: segments that offsets have room for, the unused ones empty; 0 for no more."""

    name: str
    lengths: tuple[int, ...]
    head_dim: int
    heads: int = 16
    capacity: int = 0

    @property
    def num_rows(self) -> int:
        return sum(self.lengths)

    @property
    def flops(self) -> int:
        """Two products of two operations for each pair of rows of one segment."""
        return sum(4 * n * n for n in self.lengths) * self.heads * self.head_dim

    def call(self, dtype: torch.dtype, device: str) -> Call:
        """Views of one projection, as a layer has them; ``device`` may be ``meta``."""
        size = (self.num_rows, 3, self.heads, self.head_dim)
        unused = max(0, self.capacity - len(self.lengths))
        lengths = torch.tensor([0, *self.lengths] + [0] * unused)
        offsets = lengths.cumsum(0).to(torch.int32).to(device)
        longest = self.num_rows if self.capacity else max(self.lengths)
        if device == "meta":
            qkv = torch.empty(size, dtype=dtype, device=device)
        else:
            generator = torch.Generator(device).manual_seed(0)
            qkv = torch.randn(size, dtype=dtype, device=device, generator=generator)
        q, k, v = qkv.unbind(1)
        return Call(q, k, v, offsets, longest, self.head_dim**-0.5)


SHAPES = (
    AttentionShape("1x196", (196,), 72),
    AttentionShape("1x784", (784,), 72),
    AttentionShape("1x3136", (3136,), 72),
    AttentionShape("4x784", (784,) * 4, 72),
    AttentionShape("4x784 of 64", (784,) * 4, 72, capacity=64),
    AttentionShape("4x784 of 256", (784,) * 4, 72, capacity=256),
    AttentionShape("196,784,3136,680", (196, 784, 3136, 680), 72),
    AttentionShape("1x12544", (12544,), 72),
    AttentionShape("196 windows of 64", (64,) * 196, 72),
    AttentionShape("196 windows of 64", (64,) * 196, 80),
    AttentionShape("12 windows of 64", (64,) * 12, 80),
    AttentionShape("1x784", (784,), 80),
    AttentionShape("1x3136", (3136,), 80),
    AttentionShape("1x3136", (3136,), 128),
    AttentionShape("1x12544", (12544,), 128),
)
"""The table of measured backends: the Qwen3-VL tower's sizes, Qwen2.5-VL's windows and frames."""
