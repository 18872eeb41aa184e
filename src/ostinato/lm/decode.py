"""Decode: the newest token of each sequence, padded to a rung of the batch; a recording each.

A token that the step before has yet to choose is read from its slot on the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import torch
from torch import Tensor

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
            inputs = self._inputs((), size)
            inputs.batch.slots[0] = 0  # the first page is scratch
            inputs.batch.kv_lengths[:] = 1
            self.recorded.record(inputs._replace(by=choosing([TRIAL] * size, size)), 1)

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
