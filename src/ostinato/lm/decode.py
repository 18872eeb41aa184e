"""Decode: the newest token of each sequence, padded to a rung of the batch; a recording each.

A token that the step before has yet to choose is read from its slot on the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import torch
from torch import Tensor

from ostinato.errors import DeviceError
from ostinato.kernels.compare import as_bytes
from ostinato.lm.contract import Batch
from ostinato.lm.sampling import TRIAL, choosing
from ostinato.lm.scheduler import Chunk
from ostinato.lm.step import Inputs, RecordedStep
from ostinato.recording.ladder import Ladder


class Decode:
    """``max_pages``: pages of the longest sequence; ``ladder``: batches that are recorded."""

    def __init__(
        self, recorded: RecordedStep, ladder: Ladder, *, page_size: int, max_pages: int
    ) -> None:
        self.recorded = recorded
        self._ladder = ladder
        self._page_size = page_size
        self._max_pages = max_pages

    def __call__(self, chunks: Ordered[Chunk]) -> tuple[Tensor, Tensor]:
        """Tokens and logits, a row for each chunk (and rows of padding); valid until the next
        step.
        """
        size = self._ladder.fit(len(chunks))
        assert size is not None, "the scheduler runs no more than the ladder's top"
        return self.recorded(self._inputs(chunks, size), 1)

    def record(self, *, largest_only: bool = False) -> None:
        """Record every rung, largest first."""
        sizes = self._ladder.rungs[-1:] if largest_only else self._ladder.rungs
        for size in reversed(sizes):
            by = choosing([TRIAL] * size, size)
            self.recorded.record(self._scratch(size)._replace(by=by), 1)

    def check_rows(self) -> None:
        """Raise ``DeviceError`` unless equal rows of the largest batch get equal bytes, wherever
        they stand.
        """
        inputs = self._scratch(self._ladder.top)
        inputs.ids[:] = 1
        logits = as_bytes(self.recorded(inputs, 1)[1])
        differs = (logits != logits[0]).any(dim=1)
        if bool(differs.any()):
            row = int(differs.nonzero()[0])
            raise DeviceError(
                f"row {row} of a decode of {self._ladder.top} gets other bytes than an equal row "
                "0: numerics 'invariant' cannot be had with this max_batch on this device"
            )

    def _scratch(self, size: int) -> Inputs:
        """Equal rows that see one key, in the first page, which is scratch."""
        inputs = self._inputs((), size)
        inputs.batch.slots[0] = 0
        inputs.batch.kv_lengths[:] = 1
        return inputs

    def _inputs(self, chunks: Ordered[Chunk], size: int) -> Inputs:
        ids = np.zeros(size, np.int64)
        positions = np.zeros((3, size), np.int32)
        slots = np.full(size, -1, np.int32)
        table = np.zeros((size, self._max_pages), np.int32)
        lengths = np.zeros(size, np.int32)
        for row, (sequence, start, end) in enumerate(chunks):
            is_known = start < len(sequence.token_ids)
            ids[row] = sequence.token_ids[start] if is_known else -sequence.slot
            positions[:, row] = sequence.positions(start, end)[:, 0]
            page, place = divmod(start, self._page_size)
            slots[row] = sequence.pages[page] * self._page_size + place
            table[row, : len(sequence.pages)] = sequence.pages
            lengths[row] = end
        offsets = np.arange(size + 1, dtype=np.int32)
        given = (positions, slots, table, offsets, lengths, np.arange(size, dtype=np.int32))
        batch = Batch(*map(torch.from_numpy, given))
        by = choosing([chunk.draw for chunk in chunks], size)
        return Inputs(torch.from_numpy(ids), batch, by)
