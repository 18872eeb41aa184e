"""A step's results on their way to the host: copies that were enqueued, and nobody has waited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ostinato.lm.contract import TokenLogprob
from ostinato.lm.sampling import Likely, likely, logprob_of
from ostinato.lm.scheduler import Chunk, Sequence


class Arrival(NamedTuple):
    """A sequence's next token."""

    sequence: Sequence
    token: int
    logprob: TokenLogprob | None


class Flight:
    """``tokens`` and ``logits``: a row for each chunk, valid until the next step begins.

    Who has nothing left to compute gets a token; that it is under way is counted here.
    """

    def __init__(self, chunks: tuple[Chunk, ...], tokens: Tensor, logits: Tensor) -> None:
        rows = [(row, c.sequence) for row, c in enumerate(chunks) if not c.sequence.num_left]
        self._rows = rows
        self._likely: Likely | None = None
        tokens = tokens[: len(chunks)]
        wishes = [sequence.sampler.params.logprobs for _, sequence in rows]
        if any(n is not None for n in wishes):
            found = likely(logits[: len(chunks)], tokens, max(n or 0 for n in wishes))
            self._likely = Likely(*map(_to_host, found))
        self._tokens = _to_host(tokens)
        self._event = torch.cuda.Event() if tokens.is_cuda else None
        if self._event is not None:
            self._event.record()
        for _, sequence in rows:
            sequence.num_pending += 1

    @property
    def sequences(self) -> list[Sequence]:
        """Who gets a token."""
        return [sequence for _, sequence in self._rows]

    def wait(self) -> None:
        """Until the step is done: the one place where the engine waits for the device."""
        if self._event is not None:
            self._event.synchronize()

    def arrive(self) -> Iterator[Arrival]:
        """The tokens, once the step is done."""
        self.wait()
        for row, sequence in self._rows:
            token, wish = int(self._tokens[row]), sequence.sampler.params.logprobs
            logprob = None
            if wish is not None and self._likely is not None:
                logprob = logprob_of(self._likely, row, token, wish)
            yield Arrival(sequence, token, logprob)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in memory of its own, pinned for a GPU: complete once the stream has come so far."""
    held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return held.copy_(tensor, non_blocking=True)
