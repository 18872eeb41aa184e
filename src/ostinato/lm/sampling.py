"""Chooses tokens: the numbers that the sampling operator reads, penalties, log-probabilities.

The operator's noise depends on a request's seed and the token's place only, so a request that is
computed again, alone or in another batch, draws the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels.sampling import sample
from ostinato.lm.contract import SamplingParams, TokenLogprob

_ALIGNED_VALUES = 8


class Choosing(NamedTuple):
    """What the operator reads, (B,) each; see ``kernels.sampling.sample``."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor


@dataclass(eq=False)
class Sampler:
    """One request's choice of tokens: its parameters, its seed and what it has seen."""

    params: SamplingParams
    seed: int
    prompt_ids: frozenset[int]
    counts: Counter[int] = field(default_factory=Counter)
    """How often each token was generated."""


def choosing(samplers: Sequence[tuple[Sampler, int]], size: int) -> Choosing:
    """Host tensors of ``size`` rows for (sampler, place of the token to choose); the rest is
    greedy.
    """
    spare = size - len(samplers)
    params = [sampler.params for sampler, _ in samplers]

    def column(values: list[float], off: float) -> Tensor:
        return torch.tensor(values + [off] * spare, dtype=torch.float32)

    def whole(values: list[int]) -> Tensor:
        return torch.tensor(values + [0] * spare, dtype=torch.int64)

    return Choosing(
        column([p.temperature for p in params], 0.0),
        whole([p.top_k for p in params]),
        column([p.top_p for p in params], 1.0),
        column([p.min_p for p in params], 0.0),
        whole([sampler.seed for sampler, _ in samplers]),
        whole([place for _, place in samplers]),
    )


def choose(logits: Tensor, by: Choosing) -> Tensor:
    """Tokens (B,) int64 of logits (B, num_tokens)."""
    return sample(logits, **by._asdict())


def penalised(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """A copy in float32 of the first rows, with each request's penalties.

    Repetition divides positive and multiplies negative logits of every token seen, the prompt's
    among them; frequency and presence are subtracted for generated tokens only.
    """
    result = logits[: len(samplers)].float().clone()
    for row, sampler in zip(result, samplers, strict=True):
        params = sampler.params
        if params.repetition_penalty != 1.0:
            seen = _ids(sampler.prompt_ids | sampler.counts.keys(), row)
            old, factor = row[seen], params.repetition_penalty
            row[seen] = torch.where(old > 0, old / factor, old * factor)
        if sampler.counts and (params.frequency_penalty or params.presence_penalty):
            generated = _ids(sampler.counts.keys(), row)
            times = torch.tensor([sampler.counts[i] for i in sorted(sampler.counts)])
            amount = times.to(row) * params.frequency_penalty + params.presence_penalty
            row[generated] -= amount
    return result


def _ids(ids: Iterable[int], row: Tensor) -> Tensor:
    return torch.tensor(sorted(ids), dtype=torch.int64, device=row.device)


def logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int | None]
) -> list[TokenLogprob | None]:
    """For each row that asks (not ``None``): its token's log-probability and the most probable
    ones.

    ``logits``: (B, num_tokens), before penalties. Waits for the device.
    """
    if all(n is None for n in num_top):
        return [None] * len(num_top)
    most = max(n or 0 for n in num_top)
    wide = logits[: len(token_ids)].float()
    # rows that begin at aligned addresses are summed alike, whichever they are
    spare = -wide.shape[1] % _ALIGNED_VALUES
    padded = F.pad(wide, (0, spare), value=-torch.inf) if spare else wide
    table = torch.log_softmax(padded, dim=-1)
    chosen = torch.tensor(list(token_ids), device=table.device)[:, None]
    own: list[float] = table.gather(1, chosen)[:, 0].tolist()
    best = _in_order(table).topk(max(most, 1), dim=-1).indices
    values, ids = table.gather(1, best).tolist(), best.tolist()
    return [
        None
        if n is None
        else TokenLogprob(token, own[i], tuple(zip(ids[i][:n], values[i][:n], strict=True)))
        for i, (token, n) in enumerate(zip(token_ids, num_top, strict=True))
    ]


def _in_order(table: Tensor) -> Tensor:
    """Distinct int64 that order a row as its float32 values do, the smaller token first of equals:
    which of equal values ``topk`` takes would depend on how many rows there are.
    """
    bits = table.view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (ordered << 32) - torch.arange(table.shape[1], device=table.device)
