"""Attention inside segments of packed tokens: a region that grows in tokens and segments.

``offsets`` hold the segments' boundaries; the padding tail is a segment of its own.
"""

from __future__ import annotations

import torch

from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import Region

T = torch.Tensor
TOKENS = Axis("tokens", top=32, bottom=8, multiple=4)
SEGMENTS = Axis("segments", top=8, bottom=2)


def attend(x: T, offsets: T) -> T:
    """``x`` (tokens, width): every token takes the mean of its segment's rows."""
    rows = torch.arange(x.shape[0])
    segment = torch.bucketize(rows, offsets[1:], right=True)
    same = segment.unsqueeze(0) == segment.unsqueeze(1)
    own = torch.where(same.unsqueeze(-1), x.unsqueeze(0), 0.0)
    return own.sum(1) / same.sum(1, keepdim=True) - x


def region(name: str = "attend") -> Region:
    grows = {0: {0: Grows(TOKENS)}, 1: {0: Grows(SEGMENTS, plus=1, fill=TOKENS)}}
    return Region(name, attend, grows=grows)


def packed(seed: int, *lengths: int) -> tuple[T, T]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), 3, generator=generator)
    return x, torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
