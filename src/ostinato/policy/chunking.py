"""Real-time chunking: a new chunk starts where the chunk that is being executed will be.

The closed form in model space (Black et al. 2025, with the gradient taken as the identity):
``v - g * (prefix - (x - sigma v)) * w``. Prefix, weights and the bound of ``g`` are data, so one
recording serves every delay, horizon and schedule; a weight of zero leaves ``v`` as it is.
"""

from __future__ import annotations

from math import expm1, inf
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ostinato.errors import InputError

WeightSchedule = Literal["ZEROS", "ONES", "LINEAR", "EXP"]
MAX_GUIDANCE_WEIGHT = 10.0


class Prefix(NamedTuple):
    """What is left of the previous chunk, in model space.

    ``actions``: (K, D) float32, zeros beyond what is left; ``weights``: (K,) float32 in [0, 1];
    ``max_guidance``: (1,) float32.
    """

    actions: Tensor
    weights: Tensor
    max_guidance: Tensor


def no_prefix(chunk_size: int, dim: int) -> Prefix:
    """Weights of zero: the velocity stays as it is, bit for bit."""
    return Prefix(
        torch.zeros(chunk_size, dim),
        torch.zeros(chunk_size),
        torch.full((1,), MAX_GUIDANCE_WEIGHT),
    )


def make_prefix(
    left_over: Tensor,
    chunk_size: int,
    *,
    delay: int,
    horizon: int,
    schedule: str = "LINEAR",
    max_guidance: float = MAX_GUIDANCE_WEIGHT,
) -> Prefix:
    """A prefix from the left-over actions (n, D) in model space, n at most the chunk.

    ``delay``: steps that will be executed before the new chunk is there; ``horizon``: steps that
    the old chunk may steer. Raises ``InputError`` for what cannot be.
    """
    if left_over.dim() != 2 or left_over.shape[0] > chunk_size:
        raise InputError(
            f"left-over chunk is {tuple(left_over.shape)}; expected at most {chunk_size} actions"
        )
    if not torch.isfinite(left_over).all():
        raise InputError("left-over chunk holds values that are not finite")
    if delay < 0 or horizon < 0:
        raise InputError(f"delay is {delay} and horizon {horizon}; expected no negative number")
    if not 0 < max_guidance < inf:
        raise InputError(f"max_guidance_weight is {max_guidance}; expected a finite one above 0")
    num, dim = left_over.shape
    actions = torch.zeros(chunk_size, dim)
    actions[:num] = left_over.float()
    weights = prefix_weights(schedule, delay, min(horizon, num), chunk_size)
    return Prefix(actions, weights, torch.full((1,), float(max_guidance)))


def prefix_weights(schedule: str, delay: int, end: int, chunk_size: int) -> Tensor:
    """(K,) float32: how strongly each step of the old chunk holds, by schedule.

    ``end``: steps from there on are free. ZEROS: 1 before ``min(delay, end)``, 0 after; ONES: 1
    before ``end``; LINEAR: 1, then the inner points of a straight line from 1 to 0; EXP: LINEAR
    with its inner points l replaced by ``l expm1(l) / expm1(1)``.
    """
    if schedule not in get_args(WeightSchedule):
        raise InputError(
            f"prefix schedule is {schedule!r}; expected {', '.join(get_args(WeightSchedule))}"
        )
    end = min(end, chunk_size)
    start = end if schedule == "ONES" else min(delay, end)
    inner: list[float] = []
    if schedule in ("LINEAR", "EXP"):
        num = end - start
        inner = [1 - (i + 1) / (num + 1) for i in range(num)]
    if schedule == "EXP":
        inner = [x * expm1(x) / expm1(1) for x in inner]
    values = [1.0] * start + inner
    return torch.tensor(values + [0.0] * (chunk_size - len(values)), dtype=torch.float32)


def guidance_limit(sigma: float) -> float:
    """``(1 - tau) / tau * r`` with ``tau = 1 - sigma``, before its bound; infinite at both ends."""
    tau = 1 - sigma
    if tau <= 0 or sigma <= 0:
        return inf
    ratio = ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2
    return (1 - tau) / tau * ratio


def guide(x: Tensor, velocity: Tensor, sigma: float, prefix: Prefix) -> Tensor:
    """The guided velocity of the action stream. ``x``, ``velocity``: (K, D) float32."""
    strength = prefix.max_guidance.clamp(max=guidance_limit(sigma))
    weights = prefix.weights[:, None]
    error = (prefix.actions - (x - sigma * velocity)) * weights
    return torch.where(weights > 0, velocity - strength * error, velocity)
