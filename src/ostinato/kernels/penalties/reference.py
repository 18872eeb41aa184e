"""The penalties in plain torch; every step rounds to fp32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ostinato.kernels.examples import PATTERNS, values

IN_PROMPT = 1 << 30
"""Added to a token's count where the prompt holds it."""


def penalise(
    logits: torch.Tensor,
    seen: torch.Tensor,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    x, own = logits.float(), seen.index_select(0, slots)
    repetition, frequency, presence = (t[:, None] for t in (repetition, frequency, presence))
    count = own & (IN_PROMPT - 1)
    x = torch.where(own != 0, torch.where(x > 0, x / repetition, x * repetition), x)
    return torch.where(count > 0, x - count.float() * frequency - presence, x)


def examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Every kind of logits; slots out of order; tokens seen in the prompt, in the answer, in both
    and nowhere; rows whose penalties are off.
    """
    logits, seen, *columns = args
    rows, vocabulary = min(logits.shape[0], 16), logits.shape[1]
    device = logits.device
    for number, pattern in enumerate(PATTERNS):
        generator = torch.Generator(device=device).manual_seed(number)

        def draw(high: int, *shape: int, generator: torch.Generator = generator) -> torch.Tensor:
            return torch.randint(high, shape, generator=generator, device=device)

        count = draw(7, seen.shape[0], vocabulary) * draw(2, seen.shape[0], vocabulary)
        held = (count + IN_PROMPT * draw(2, seen.shape[0], vocabulary)).to(seen.dtype)
        slots, repetition, frequency, presence = columns
        is_on = draw(4, rows) > 0
        yield (
            values(pattern, (rows, vocabulary), logits, seed=number),
            held,
            draw(seen.shape[0], rows).to(slots.dtype),
            torch.where(is_on, 0.5 + draw(5, rows) * 0.3, 1.0).to(repetition.dtype),
            torch.where(is_on, draw(5, rows) * 0.7 - 1.4, 0.0).to(frequency.dtype),
            torch.where(is_on, draw(5, rows) * 0.3 - 0.6, 0.0).to(presence.dtype),
        )
