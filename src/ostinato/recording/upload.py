"""One upload for everything a call brings from the host.

All host tensors of a call are packed into one pinned slot and travel in one copy. A slot is
written again only after the event of its last upload, so a copy in flight never reads another
call's metadata. A caller that never writes again to what it gives may have packed it already.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from ostinato.recording.spec import ALIGNMENT_BYTES, TensorSpec

NUM_SLOTS = 4
"""Uploads that may be in flight before a caller waits for the oldest."""


class Upload:
    """Device tensors that are views of one buffer, filled by one host-to-device copy.

    ``tensors`` have the given specs, on ``device``. On the CPU the copy is a plain one. With
    ``is_kept`` the host tensors are never written again: those that lie in one block as they lie
    on the device (each begins at a multiple of ``ALIGNMENT_BYTES``) travel from where they are, and
    not again while they are what the device holds; torch keeps pinned memory that a copy still
    reads from being used again.
    """

    def __init__(
        self, specs: Sequence[TensorSpec], device: torch.device, *, is_kept: bool = False
    ) -> None:
        self._is_kept = is_kept
        self._is_pinned = device.type == "cuda"
        starts, end = [], 0
        for spec in specs:
            starts.append(end)
            num_bytes = spec.shape.numel() * spec.dtype.itemsize
            end += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.num_bytes = max(end, 1)
        self._target = torch.zeros(self.num_bytes, dtype=torch.uint8, device=device)
        self._places = list(zip(specs, starts, strict=True))
        self.tensors = self._views(self._target)
        self._slots = [self._slot() for _ in range(NUM_SLOTS if self._is_pinned else 1)]
        self._next = 0
        self._last: tuple[Sequence[torch.Tensor], torch.Tensor] | None = None
        self._sent: torch.Tensor | None = None  # the block that the device holds

    def _views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        views = []
        for spec, start in self._places:
            num_bytes = spec.shape.numel() * spec.dtype.itemsize
            views.append(buffer[start : start + num_bytes].view(spec.dtype).view(spec.shape))
        return views

    def _slot(self) -> _Slot:
        buffer = torch.zeros(self.num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        return _Slot(buffer, self._views(buffer))

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy host tensors of the specs' shapes to the device, on the current stream."""
        block = self._block_of(tensors) if self._is_kept else None
        if block is not None:
            if block is not self._sent:
                self._target.copy_(block, non_blocking=True)
                self._sent = block
            return
        self._sent = None
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.wait()
        for view, tensor in zip(slot.views, tensors, strict=True):
            view.copy_(tensor)
        self._target.copy_(slot.buffer, non_blocking=True)
        if self._is_pinned:
            slot.mark()

    def _block_of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The memory that holds all ``tensors`` as the target does, if they lie like that."""
        first, last = tensors[0], self._last
        if last is not None and all(map(operator.is_, tensors, last[0])):
            return last[1]
        begin = first.data_ptr()
        for tensor, (spec, start) in zip(tensors, self._places, strict=True):
            if tensor.data_ptr() != begin + start or tensor.stride() != spec.stride:
                return None
        storage = first.untyped_storage()
        offset = begin - storage.data_ptr()
        if offset + self.num_bytes > storage.nbytes():
            return None
        block = torch.empty(0, dtype=torch.uint8)
        block.set_(storage, offset, (self.num_bytes,), (1,))
        self._last = tuple(tensors), block
        return block


class _Slot:
    def __init__(self, buffer: torch.Tensor, views: list[torch.Tensor]) -> None:
        self.buffer = buffer
        self.views = views
        self._event: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Wait until the last upload from this slot has been read; normally it has long been."""
        if self._event is not None:
            self._event.synchronize()

    def mark(self) -> None:
        if self._event is None:
            self._event = torch.cuda.Event()
        self._event.record()
