"""A layout's arrays on the host as tensors, in one block, so that one copy brings them to a device.

The block is pinned where the device is a GPU: a copy from ordinary memory would make the host wait
for what the device has been given before.
"""

from __future__ import annotations

import numpy as np
import torch

from ostinato.recording.spec import ALIGNMENT_BYTES
from ostinato.vision.contract import LayoutArrays, LayoutTensors

_STEP = ALIGNMENT_BYTES // 4
"""Four-byte elements between the beginnings of two arrays are a multiple of this, as in an upload:
the block travels as it is."""

_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.float32): torch.float32}


class HostLayout:
    """Never written again once made; ``tensors`` are views of the block."""

    def __init__(self, arrays: LayoutArrays, *, pin: bool) -> None:
        self._places: dict[str, tuple[int, tuple[int, ...], torch.dtype]] = {}
        end = 0
        for name, array in arrays._asdict().items():
            if array is not None:
                self._places[name] = (end, array.shape, _DTYPES[array.dtype])
                end += -(-array.size // _STEP) * _STEP
        self._block = torch.zeros(max(end, 1), dtype=torch.int32, pin_memory=pin)
        written = self._block.numpy()
        for name, (start, _, _) in self._places.items():
            array = getattr(arrays, name)
            written[start : start + array.size] = array.reshape(-1).view(np.int32)
        self.tensors = self._views(self._block)

    @property
    def num_bytes(self) -> int:
        return self._block.nbytes

    def upload(self, device: torch.device) -> LayoutTensors:
        """The same in fresh memory of ``device``; the host does not wait."""
        return self._views(self._block.to(device, non_blocking=True))

    def _views(self, block: torch.Tensor) -> LayoutTensors:
        views = {}
        for name, (start, shape, dtype) in self._places.items():
            size = 1
            for n in shape:
                size *= n
            views[name] = block[start : start + size].view(dtype).view(shape)
        return LayoutTensors(**views)
