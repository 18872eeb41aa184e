"""Prefill: chunks of several prompts, padded to a rung of tokens; one recording each.

Rows of media replace embeddings by index: they are gathered on the device into one static input,
so a prompt with images replays as one without does. Text alone has recordings of its own, which
read no such input.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import torch
from torch import Tensor

from ostinato.lm.contract import Batch, Media
from ostinato.lm.sampling import TRIAL, choosing
from ostinato.lm.scheduler import Chunk
from ostinato.lm.step import Inputs, RecordedStep
from ostinato.recording.ladder import Ladder


class Prefill:
    """``max_chunks``: sequences of one step; ``features_width``: of a row of media, DeepStack
    levels included.
    """

    def __init__(
        self,
        recorded: RecordedStep,
        ladder: Ladder,
        *,
        page_size: int,
        max_pages: int,
        max_chunks: int,
        features_width: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.recorded = recorded
        self._ladder = ladder
        self._page_size = page_size
        self._max_pages = max_pages
        self._max_chunks = max_chunks
        self._padding = torch.zeros(1, features_width, device=device, dtype=dtype)

    def __call__(self, chunks: Ordered[Chunk]) -> tuple[Tensor, Tensor]:
        """Tokens and logits, a row for each chunk (and rows of padding); valid until the next
        step. The media that the chunks show must have their rows.
        """
        size = self._ladder.fit(sum(chunk.end - chunk.start for chunk in chunks))
        assert size is not None, "the scheduler plans no more than the ladder's top"
        inputs = self._inputs(chunks, size)
        sources, rows = self._media(chunks, size)
        if rows:
            spare = size - sum(map(len, rows))
            features = torch.cat([*rows, self._padding.expand(spare, -1)])
            inputs = inputs._replace(sources=torch.from_numpy(sources), features=features)
        return self.recorded(inputs, size)

    def record(self, *, largest_only: bool = False) -> None:
        """Record every rung, largest first, with media and without."""
        sizes = self._ladder.rungs[-1:] if largest_only else self._ladder.rungs
        for size in reversed(sizes):
            inputs = self.scratch(size)
            generator = torch.Generator(self._padding.device).manual_seed(size)
            features = self._padding.repeat(size, 1).normal_(generator=generator)
            sources = torch.arange(size) - size // 2  # text, then media
            inputs = inputs._replace(by=choosing([TRIAL] * self._max_chunks, self._max_chunks))
            self.recorded.record(inputs._replace(sources=sources, features=features), size)
            self.recorded.record(inputs, size)

    def scratch(self, size: int) -> Inputs:
        """Inputs of a rung, of text, that read and write the page of scratch alone."""
        inputs = self._inputs((), size)
        inputs.batch.slots[: self._page_size] = torch.arange(min(size, self._page_size))
        inputs.batch.kv_lengths[0] = min(size, self._max_pages * self._page_size)
        inputs.batch.query_offsets[1:] = inputs.batch.kv_lengths[0]
        return inputs

    def _inputs(self, chunks: Ordered[Chunk], size: int) -> Inputs:
        count = self._max_chunks
        ids = np.zeros(size, np.int64)
        positions = np.zeros((3, size), np.int32)
        slots = np.full(size, -1, np.int32)
        table = np.zeros((count, self._max_pages), np.int32)
        offsets, lengths = np.zeros(count + 1, np.int32), np.zeros(count, np.int32)
        last = np.zeros(count, np.int32)
        row = 0
        for i, (sequence, start, end) in enumerate(chunks):
            past = row + end - start
            ids[row:past] = sequence.token_ids[start:end]
            positions[:, row:past] = sequence.positions(start, end)
            page, place = np.divmod(np.arange(start, end), self._page_size)
            slots[row:past] = np.asarray(sequence.pages)[page] * self._page_size + place
            table[i, : len(sequence.pages)] = sequence.pages
            offsets[i + 1 :], lengths[i], last[i] = past, end, past - 1
            row = past
        given = (positions, slots, table, offsets, lengths, last)
        by = choosing([chunk.draw for chunk in chunks], count)
        return Inputs(torch.from_numpy(ids), Batch(*map(torch.from_numpy, given)), by)

    @staticmethod
    def _media(chunks: Ordered[Chunk], size: int) -> tuple[np.ndarray, list[Tensor]]:
        """Which row each token takes, and the rows' parts in order."""
        sources = np.full(size, -1, np.int64)
        rows: list[Tensor] = []
        base = num_rows = 0
        for sequence, start, end in chunks:
            for span in sequence.prompt.spans:
                low, high = max(span.start, start), min(span.start + span.length, end)
                if low < high:
                    assert span.media.rows is not None
                    first = span.first + low - span.start
                    rows.append(span.media.rows[first : first + high - low])
                    at = base + low - start
                    sources[at : at + high - low] = np.arange(num_rows, num_rows + high - low)
                    num_rows += high - low
            base += end - start
        return sources, rows


def media_of(chunks: Ordered[Chunk]) -> list[Media]:
    """The media that the chunks show and that have no rows yet, each once."""
    found: dict[int, Media] = {}
    for sequence, start, end in chunks:
        for span in sequence.prompt.spans:
            if span.start < end and start < span.start + span.length and span.media.rows is None:
                found[id(span.media)] = span.media
    return list(found.values())
