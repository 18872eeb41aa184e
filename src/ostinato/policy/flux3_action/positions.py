"""Where tokens stand in time and space, and the rotary tables of their places.

Ids are (T, 4) int64: time on a 10 ms clock, row, column, place in the text. They depend on sizes
and the frame rate only, so that tables are constants of a policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.policy.flux3_action.config import FRAMES_PER_LATENT


def clock(seconds: Tensor) -> Tensor:
    """``floor(1000 * seconds / 10)`` in float32, as int64."""
    return torch.floor(seconds.float() * 1000 / 10).long()


def text_ids(length: int) -> Tensor:
    """(0, 0, 0, l): straight through the padding."""
    ids = torch.zeros(length, 4, dtype=torch.int64)
    ids[:, 3] = torch.arange(length)
    return ids


def video_ids(frames: Sequence[int], rows: int, columns: int, fps: float) -> Tensor:
    """(t, row, column, 0), time outermost; latent frame i stands at ``4 i / fps`` seconds."""
    seconds = torch.tensor(frames, dtype=torch.float32) * FRAMES_PER_LATENT / fps
    t = clock(seconds)[:, None, None].expand(-1, rows, columns)
    y = torch.arange(rows)[None, :, None].expand_as(t)
    x = torch.arange(columns)[None, None, :].expand_as(t)
    return torch.stack((t, y, x, torch.zeros_like(t)), dim=-1).flatten(0, 2)


def action_ids(num_actions: int, fps: float) -> Tensor:
    """(t, 0, 0, 0); action j is executed at ``(j + 1) / fps`` seconds."""
    ids = torch.zeros(num_actions, 4, dtype=torch.int64)
    ids[:, 0] = clock((torch.arange(num_actions, dtype=torch.float32) + 1) / fps)
    return ids


def rotary_tables(
    ids: Tensor, axes_dim: Sequence[int], theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, head_dim / 2) float32, the axes' angles side by side.

    Frequencies ``theta^(-2 j / d)`` of an axis with d channels, and angles, are made in float64.
    """
    angles = [
        ids[:, axis, None].double() * theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        for axis, dim in enumerate(axes_dim)
    ]
    joined = torch.cat(angles, dim=-1)
    return joined.cos().float().to(device), joined.sin().float().to(device)
