"""Static buffers that the recordings of one generation share.

Recordings of a lane never run at the same time, and what a call brings and gets is copied in and
out on the way, so a ladder of them needs the memory of its largest rung only. A buffer is never
grown or moved: what needs more gets a new one, and the old one stays for those that know it.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

import torch

from ostinato.recording.spec import TensorSpec


class Buffer:
    """``memory``: one dimension. ``dirty``: how many elements of its first growing dimension, from
    the front, may hold what calls brought; all of them at first.
    """

    def __init__(self, memory: torch.Tensor, dirty: int) -> None:
        self.memory = memory
        self.dirty = dirty


class SharedBuffers:
    """Of one generation; kept until it retires."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Buffer] = {}
        self.num_bytes = 0

    def take(
        self, key: Hashable, spec: TensorSpec, device: torch.device
    ) -> tuple[torch.Tensor, Buffer]:
        """A contiguous tensor of the spec's shape and dtype at the front of the key's buffer."""
        size = prod(spec.shape)
        buffer = self._buffers.get((key, spec.dtype))
        if buffer is None or buffer.memory.numel() < size:
            memory = torch.zeros(max(size, 1), dtype=spec.dtype, device=device)
            rows = spec.shape[0] if spec.shape else 0
            buffer = self._buffers[key, spec.dtype] = Buffer(memory, rows)
            self.num_bytes += memory.numel() * memory.element_size()
        return buffer.memory[:size].view(spec.shape), buffer
