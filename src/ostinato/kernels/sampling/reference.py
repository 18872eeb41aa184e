"""The sampling rule in plain torch: filters as thresholds on logits, noise from a counter.

Every filter keeps a set {logit >= threshold}, so equal logits stand or fall together and no sort
order enters the answer. The noise of a token is a function of (seed, position, token) only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

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
    wide = logits.float()
    is_greedy = (temperature <= 0)[:, None]
    scaled = wide / torch.where(is_greedy, 1.0, temperature[:, None])
    scaled = scaled.masked_fill(scaled.isnan(), -torch.inf)
    kept = scaled >= torch.maximum(
        torch.maximum(_top_k(scaled, top_k), _min_p(scaled, min_p)), _top_p(scaled, top_k, top_p)
    )
    score = torch.where(is_greedy, scaled, scaled + _gumbel(logits.shape, seeds, positions))
    return score.masked_fill(~(kept | is_greedy), -torch.inf).argmax(-1)


def _top_k(scaled: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Smallest logit among the k largest; k < 1 keeps all."""
    ordered = scaled.sort(-1, descending=True).values
    place = (top_k.long() - 1).clamp(0, scaled.shape[1] - 1)[:, None]
    return torch.where((top_k < 1)[:, None], -torch.inf, ordered.gather(1, place))


def _min_p(scaled: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """A token needs at least ``min_p`` times the largest probability; 0 keeps all."""
    return scaled.amax(-1, keepdim=True) + torch.log(min_p)[:, None]


def _top_p(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Smallest logit of the fewest largest tokens whose probability reaches p, among the top k."""
    limited = scaled.masked_fill(scaled < _top_k(scaled, top_k), -torch.inf)
    ordered = limited.sort(-1, descending=True).values
    before = torch.softmax(ordered, -1).cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    needed = (before < top_p[:, None]).sum(-1, keepdim=True).clamp(min=1)
    smallest = ordered.gather(1, needed - 1)
    return torch.where((top_p >= 1)[:, None], -torch.inf, smallest)


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
