"""What the device remembers of each running sequence, so that no step waits for the host: its
newest token, and how often it has seen each token.

Recordings read and write this; it never moves. The first slot belongs to nobody: padding, warm-up
and gate write there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.kernels.penalties import IN_PROMPT, penalise
from ostinato.lm.sampling import SCRATCH, Choosing


class Slots:
    """``num_sequences`` run at once over ``num_tokens`` different tokens."""

    def __init__(self, num_sequences: int, num_tokens: int, device: torch.device) -> None:
        self._device = device
        self._newest = torch.zeros(1 + num_sequences, dtype=torch.int64, device=device)
        shape = (1 + num_sequences, num_tokens)
        self._seen = torch.zeros(shape, dtype=torch.int32, device=device)
        self._seen[SCRATCH] = 1  # then one more of a token changes no trial's answer

    @property
    def state(self) -> tuple[Tensor, Tensor]:
        """The tensors that a step writes."""
        return self._newest, self._seen

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state)

    def reset(self, slot: int, prompt: Sequence[int], generated: Sequence[int]) -> None:
        """A request takes a slot: its penalties begin with its own tokens. Waits for nothing."""
        row = self._seen[slot]
        row.zero_()
        row.index_fill_(0, self._up(prompt), IN_PROMPT)
        if generated:
            ids = self._up(generated)
            row.index_add_(0, ids, torch.ones_like(ids, dtype=row.dtype))

    def _up(self, ids: Sequence[int]) -> Tensor:
        held = torch.tensor(ids, dtype=torch.int64)
        if self._device.type == "cuda":
            held = held.pin_memory()
        return held.to(self._device, non_blocking=True)

    # -- inside recordings --------------------------------------------------------------------

    def known(self, ids: Tensor) -> Tensor:
        """``ids`` with the newest token of slot s where they hold -s."""
        return torch.where(ids < 0, self._newest[(-ids).clamp(min=0)], ids)

    def penalised(self, logits: Tensor, by: Choosing) -> Tensor:
        """Logits (B, num_tokens) in float32, less each request's penalties."""
        return penalise(
            logits,
            self._seen,
            slots=by.slots,
            repetition=by.repetition,
            frequency=by.frequency,
            presence=by.presence,
        )

    def keep(self, tokens: Tensor, by: Choosing) -> None:
        """``tokens`` (B,) are the newest of their slots from now on."""
        self._newest.scatter_(0, by.slots, tokens)
        places = by.slots * self._seen.shape[1] + tokens
        one = torch.ones_like(tokens, dtype=self._seen.dtype)
        self._seen.view(-1).index_add_(0, places, one)
