"""Draws one token per row: greedy, temperature, top-k, top-p, min-p. Bit-exact.

Filters keep every token whose logit is at least a threshold, top-p sums integers and the noise
comes from a counter, so that an answer depends on the row's own logits, seed and position only.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.kernels.op import Operator, lazy_kernel, register
from ostinato.kernels.sampling import reference

__all__ = ["sample"]


def _fake(logits: torch.Tensor, *rest: object) -> torch.Tensor:
    return logits.new_empty((logits.shape[0],), dtype=torch.int64)


_sample = register(
    Operator(
        name="sample",
        reference=reference.sample,
        kernel=lazy_kernel(__name__, "sample"),
        exactness="bit-exact",
        rows=("logits", "temperature", "top_k", "top_p", "min_p", "seeds", "positions"),
        examples=reference.examples,
        is_row_invariant=True,
    ),
    "(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, "
    "Tensor positions) -> Tensor",
    _fake,
)


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """One token (B,) int64 per row of ``logits`` (B, vocabulary).

    The others are (B,), data of a recording: ``temperature`` (0 is greedy), ``top_p`` (1 is off)
    and ``min_p`` (0 is off; relative to the most probable token) of fp32, ``top_k`` (0 is off),
    ``seeds`` and ``positions`` of int32 or int64 (low 32 bits count). Order: temperature, top-k,
    top-p among what top-k left, min-p. Equal logits stand or fall together; ties of the final
    choice go to the smaller token. NaN logits are never chosen.
    """
    rows = logits.shape[:1]
    for name, x in (
        ("temperature", temperature),
        ("top_k", top_k),
        ("top_p", top_p),
        ("min_p", min_p),
        ("seeds", seeds),
        ("positions", positions),
    ):
        if x.shape != rows:
            raise ConfigError(f"sample: {name} is {tuple(x.shape)}, expected {tuple(rows)}")
    result: torch.Tensor = _sample(logits, temperature, top_k, top_p, min_p, seeds, positions)
    return result
