"""Chooses tokens: the numbers that the operators read, and log-probabilities.

The noise of a choice depends on a request's seed and the token's place only, so a request that is
computed again, alone or in another batch, draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels.sampling import sample
from ostinato.lm.contract import SamplingParams, TokenLogprob

SCRATCH = 0
"""The slot that belongs to no sequence."""

COLDEST = 1e-5
"""Below this temperature a choice is greedy, as in vLLM: published defaults say 1e-6 for that."""

_ALIGNED_VALUES = 8


class Choosing(NamedTuple):
    """What the operators read, (B,) each; see ``kernels.sampling.sample`` and
    ``kernels.penalties.penalise``.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    slots: Tensor
    """Whose token it is: where the device keeps what it remembers of a sequence."""


@dataclass(frozen=True)
class Sampler:
    """One request's choice of tokens: its parameters and its seed."""

    params: SamplingParams
    seed: int


class Draw(NamedTuple):
    """One token to choose: by whom, its place in the sequence, and the slot that keeps it."""

    sampler: Sampler
    place: int
    slot: int


TRIAL = Draw(
    Sampler(
        SamplingParams(
            temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.4
        ),
        seed=1,
    ),
    place=1,
    slot=SCRATCH,
)
"""What recordings are tried with. No frequency penalty: its answer would change with each trial."""


def choosing(draws: Sequence[Draw], size: int) -> Choosing:
    """Host tensors of ``size`` rows; the rest is greedy and kept by nobody."""
    spare = size - len(draws)
    params = [draw.sampler.params for draw in draws]

    def column(values: list[float], off: float) -> Tensor:
        return torch.tensor(values + [off] * spare, dtype=torch.float32)

    def whole(values: list[int]) -> Tensor:
        return torch.tensor(values + [0] * spare, dtype=torch.int64)

    return Choosing(
        column([p.temperature if p.temperature >= COLDEST else 0.0 for p in params], 0.0),
        whole([p.top_k for p in params]),
        column([p.top_p for p in params], 1.0),
        column([p.min_p for p in params], 0.0),
        whole([draw.sampler.seed for draw in draws]),
        whole([draw.place for draw in draws]),
        column([p.repetition_penalty for p in params], 1.0),
        column([p.frequency_penalty for p in params], 0.0),
        column([p.presence_penalty for p in params], 0.0),
        whole([draw.slot for draw in draws]),
    )


def choose(logits: Tensor, by: Choosing) -> Tensor:
    """Tokens (B,) int64 of logits (B, num_tokens), which have their penalties."""
    return sample(logits, **{name: getattr(by, name) for name in _FILTERS})


_FILTERS = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")


class Likely(NamedTuple):
    """Log-probabilities of B rows: the chosen token's (B, 1), and the most probable k, (B, k)."""

    own: Tensor
    values: Tensor
    ids: Tensor


def likely(logits: Tensor, tokens: Tensor, num_top: int) -> Likely:
    """Of the model's own distribution: ``logits`` (B, num_tokens) before penalties. Waits for
    nothing. A row's answer does not depend on the others, nor on how many there are.
    """
    wide = logits.float()
    # rows that begin at aligned addresses are summed alike, whichever they are
    spare = -wide.shape[1] % _ALIGNED_VALUES
    padded = F.pad(wide, (0, spare), value=-torch.inf) if spare else wide
    table = torch.log_softmax(padded, dim=-1)
    ids = _in_order(table).topk(max(num_top, 1), dim=-1).indices
    return Likely(table.gather(1, tokens[:, None]), table.gather(1, ids), ids)


def logprob_of(found: Likely, row: int, token: int, num_top: int) -> TokenLogprob:
    """What a row of ``found``, which is on the host, says of its token."""
    top = zip(found.ids[row, :num_top].tolist(), found.values[row, :num_top].tolist(), strict=True)
    return TokenLogprob(token, float(found.own[row, 0]), tuple(top))


def _in_order(table: Tensor) -> Tensor:
    """Distinct int64 that order a row as its float32 values do, the smaller token first of equals:
    which of equal values ``topk`` takes would depend on how many rows there are.
    """
    bits = table.view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (ordered << 32) - torch.arange(table.shape[1], device=table.device)
