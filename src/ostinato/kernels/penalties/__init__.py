"""Lowers the logits of tokens that a request has seen: repetition, frequency, presence. Bit-exact.

What was seen is kept in one integer per request and token, so that a recording can add to it.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.penalties import reference
from ostinato.kernels.penalties.reference import IN_PROMPT

__all__ = ["IN_PROMPT", "penalise"]


def _fake(logits: torch.Tensor, *rest: object) -> torch.Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


_penalise = register(
    Operator(
        name="penalise",
        reference=reference.penalise,
        kernel=lazy_kernel(__name__, "penalise"),
        exactness="bit-exact",
        rows=("logits", "slots", "repetition", "frequency", "presence"),
        examples=reference.examples,
        is_row_invariant=True,
    ),
    "(Tensor logits, Tensor seen, Tensor slots, Tensor repetition, Tensor frequency, "
    "Tensor presence) -> Tensor",
    _fake,
)


def penalise(
    logits: torch.Tensor,
    seen: torch.Tensor,
    *,
    slots: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """``logits`` (B, vocabulary) in fp32 with the penalties of row b's slot, as vLLM has them.

    ``seen`` (slots, vocabulary) int32: how often a token was generated, plus ``IN_PROMPT`` where
    the prompt holds it. ``slots`` (B,) of int32 or int64; their values are data of a recording and
    not checked. Repetition (B,) divides positive and multiplies other logits of every token seen;
    then ``frequency`` (B,) times the count and ``presence`` (B,) are subtracted for generated
    tokens. 1, 0 and 0 are off: such a row keeps its values whatever ``seen`` holds.
    """
    rows = logits.shape[:1]
    for name, x in (
        ("slots", slots),
        ("repetition", repetition),
        ("frequency", frequency),
        ("presence", presence),
    ):
        if x.shape != rows:
            raise ConfigError(f"penalise: {name} is {tuple(x.shape)}, expected {tuple(rows)}")
    if seen.dtype != torch.int32 or seen.shape[1:] != logits.shape[1:] or not seen.is_contiguous():
        raise ConfigError(
            f"penalise: seen is {tuple(seen.shape)} {seen.dtype}, expected contiguous int32 with "
            f"{logits.shape[1]} columns"
        )
    result: torch.Tensor = _penalise(logits, seen, slots, repetition, frequency, presence)
    return result
