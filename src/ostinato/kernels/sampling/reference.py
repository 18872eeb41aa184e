"""The sampling rule in plain torch: filters as thresholds on logits, noise from a counter.

Every filter keeps a set {logit >= threshold}, so equal logits stand or fall together and no sort
order enters the answer. The noise of a token is a function of (seed, position, token) only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

MASS = 2.0**30
"""A token's mass in top-p is an integer, the largest token's is this: sums have no order."""
_MASK = 0xFFFFFFFF


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    is_greedy = (temperature <= 0)[:, None]
    scaled = logits.float() / torch.where(is_greedy, 1.0, temperature.float()[:, None])
    scaled = torch.where(scaled.isnan(), -torch.inf, scaled)
    largest = scaled.amax(-1, keepdim=True)
    relative = torch.where(scaled == largest, 1.0, torch.exp(scaled - largest))
    relative = torch.where(scaled == -torch.inf, 0.0, relative)
    ordered, order = scaled.sort(-1, descending=True)
    in_top_k = scaled >= _kth(ordered, top_k)
    mass = torch.where(in_top_k, (relative * MASS).long(), 0)
    is_kept = in_top_k & (relative >= min_p.float()[:, None])
    is_kept &= scaled >= _nucleus(ordered, mass.gather(1, order), top_p)
    score = scaled + torch.where(is_greedy, 0.0, _gumbel(logits.shape, seeds, positions))
    score = torch.where(is_kept | is_greedy, score, -torch.inf)
    token = torch.arange(logits.shape[1], device=logits.device)
    is_best = score == score.amax(-1, keepdim=True)
    return torch.where(is_best, token, logits.shape[1]).amin(-1)


def _kth(ordered: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The k-th largest logit; -inf for k < 1."""
    place = (top_k.long() - 1).clamp(0, ordered.shape[1] - 1)[:, None]
    return torch.where((top_k < 1)[:, None], -torch.inf, ordered.gather(1, place))


def _nucleus(ordered: torch.Tensor, mass: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The logit at which the mass of the largest tokens reaches p of all; -inf for p >= 1."""
    reached = mass.cumsum(-1)
    needed = (top_p.double()[:, None] * reached[:, -1:].double()).ceil().long().clamp(min=1)
    place = (reached < needed).sum(-1, keepdim=True).clamp(max=ordered.shape[1] - 1)
    return torch.where((top_p >= 1)[:, None], -torch.inf, ordered.gather(1, place))


def _gumbel(shape: torch.Size, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    token = torch.arange(shape[1], device=seeds.device)
    bits = mix(mix(mix(seeds.long() & _MASK) ^ (positions.long() & _MASK))[:, None] ^ token)
    # 23 bits and a half: never 0 or 1, exact in fp32.
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def mix(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser ("lowbias32"): every input bit changes about half of the output bits."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = _multiply(x, 0x846CA68B)
    return x ^ (x >> 16)


def _multiply(x: torch.Tensor, factor: int) -> torch.Tensor:
    """Low 32 bits of a product whose full width would overflow int64's sign."""
    low = (x & 0xFFFF) * factor
    high = ((x >> 16) * (factor & 0xFFFF)) << 16
    return (low + high) & _MASK


def examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Logits with wide gaps: the choice is discrete, so what is compared must not hang on a bit."""
    logits = args[0]
    rows, vocabulary = min(logits.shape[0], 16), logits.shape[1]
    generator = torch.Generator(device=logits.device).manual_seed(0)

    def pick(template: torch.Tensor, *choices: float) -> torch.Tensor:
        index = torch.arange(rows, device=template.device) % len(choices)
        return torch.tensor(choices, device=template.device)[index].to(template.dtype)

    for number in range(4):
        order = torch.rand((rows, vocabulary), generator=generator, device=logits.device)
        # Distinct multiples of 1/16 within bf16's exact range, most of the mass on few tokens.
        filled = -(order.argsort(-1).float().clamp(max=200) / 16)
        if number == 1:
            filled[:, ::3] = -torch.inf
        if number == 2:
            filled[:, ::5] = torch.nan
        yield (
            filled.to(logits.dtype),
            pick(args[1], 0.0, 1.0, 0.5, 2.0),
            pick(args[2], 0, 1, 5, 50, vocabulary),
            pick(args[3], 1.0, 0.97, 0.4, 0.03),
            pick(args[4], 0.0, 0.0, 0.21, 0.013),
            *(torch.randint(2**31 - 1, (rows,), generator=generator, device=x.device).to(x.dtype)
              for x in args[5:]),
        )  # fmt: skip
