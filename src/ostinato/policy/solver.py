"""Samplers of rectified flows: coefficients on the host, updates as pure functions of tensors.

``x_t = t * noise + (1 - t) * x0`` and the velocity is ``noise - x0``. A ``Schedule`` depends on the
number of steps and the shift only, so a whole loop of steps can be recorded. UniPC is of order two
(B2 variant, predicting x0; Zhao et al. 2023) and calls the model once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import expm1, log
from struct import pack, unpack
from typing import NamedTuple

from torch import Tensor

from ostinato.errors import ConfigError

FIRST = 0.999
"""Where the grid starts before it is shifted, as a float32."""


@dataclass(frozen=True)
class Corrector:
    """``x = start * y + last * m_last + before * m_before + new * x0`` of the step just made."""

    start: float
    last: float
    before: float
    new: float


@dataclass(frozen=True)
class Predictor:
    """``x_next = sample * x + new * x0 + last * m_last``."""

    sample: float
    new: float
    last: float


@dataclass(frozen=True)
class Step:
    """One model call: noise level ``sigma``, the model's time, and what follows from its answer."""

    sigma: float
    time: float
    corrector: Corrector | None
    predictor: Predictor


@dataclass(frozen=True)
class Schedule:
    """Every step of one sampler. ``ticks``: the model times in thousandths (UniPC)."""

    sampler: str
    steps: tuple[Step, ...]
    ticks: tuple[int, ...] = ()


class History(NamedTuple):
    """What a stream carries from step to step; all float32 and of the sample's shape.

    ``start``: the corrected sample that the last prediction started from; ``last`` and ``before``:
    the predictions of x0 of the last two steps.
    """

    start: Tensor
    last: Tensor
    before: Tensor | None


@lru_cache(maxsize=64)
def schedule(sampler: str, num_steps: int, shift: float) -> Schedule:
    """Coefficients of ``cosmos_unipc`` or ``euler``; raises ``ConfigError`` for anything else."""
    if num_steps < 1:
        raise ConfigError(f"num_inference_steps is {num_steps}; expected at least 1")
    if not shift > 0:
        raise ConfigError(f"sampler_shift is {shift}; expected a number above 0")
    if sampler == "cosmos_unipc":
        return _unipc(num_steps, shift)
    if sampler == "euler":
        return _euler(num_steps, shift)
    raise ConfigError(f"sampler is {sampler!r}; expected 'cosmos_unipc' or 'euler'")


def advance(
    step: Step, x: Tensor, velocity: Tensor, history: History | None
) -> tuple[Tensor, History]:
    """The next sample and history of one stream, from its float32 sample and velocity."""
    x0 = x - step.sigma * velocity
    if step.corrector is not None and history is not None:
        c = step.corrector
        x = c.start * history.start + c.last * history.last + c.new * x0
        if history.before is not None and c.before != 0.0:
            x = x + c.before * history.before
    p = step.predictor
    # a coefficient of zero leaves its term out: the last step returns x0 itself
    following = p.new * x0 if p.new != 1.0 else x0
    if p.sample != 0.0:
        following = p.sample * x + following
    last = None if history is None else history.last
    if last is not None and p.last != 0.0:
        following = following + p.last * last
    return following, History(x, x0, last)


def sample(
    schedule: Schedule,
    streams: tuple[Tensor, ...],
    velocities: Callable[[Step, tuple[Tensor, ...]], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Run every step on all streams together; ``velocities`` is the model. float32 throughout."""
    histories: list[History | None] = [None] * len(streams)
    for step in schedule.steps:
        answers = velocities(step, streams)
        moved = []
        for i, (x, v) in enumerate(zip(streams, answers, strict=True)):
            x_next, histories[i] = advance(step, x, v.float(), histories[i])
            moved.append(x_next)
        streams = tuple(moved)
    return streams


def _float32(value: float) -> float:
    """Rounded to float32, on the host."""
    rounded: float = unpack("f", pack("f", value))[0]
    return rounded


def _shifted(u: float, shift: float) -> float:
    return shift * u / (1 + (shift - 1) * u)


def _euler(num_steps: int, shift: float) -> Schedule:
    """``x + (t_next - t) v``, the model's time being t itself."""
    times = [_shifted(1 - i / num_steps, shift) for i in range(num_steps + 1)]
    steps = []
    for t, t_next in pairwise(times):
        # in terms of x and x0 = x - t v: x_next = (t_next / t) x + (1 - t_next / t) x0
        ratio = t_next / t
        steps.append(Step(t, _float32(t), None, Predictor(ratio, 1 - ratio, 0.0)))
    return Schedule("euler", tuple(steps))


def _unipc(num_steps: int, shift: float) -> Schedule:
    first = _float32(FIRST)
    exact = [_shifted(first * (1 - i / num_steps), shift) for i in range(num_steps)]
    ticks = tuple(int(1000 * sigma) for sigma in exact)  # truncated before sigmas are rounded
    sigmas = [_float32(sigma) for sigma in exact] + [0.0]
    steps = []
    order = 1
    for i in range(num_steps):
        # the last step returns its x0, which no correction changes
        has_corrector = 0 < i < num_steps - 1
        corrector = _corrector(sigmas, i, order) if has_corrector else None
        order = min(2, num_steps - i, i + 1)
        predictor = _predictor(sigmas, i, order)
        steps.append(Step(sigmas[i], _float32(_float32(ticks[i]) / 1000), corrector, predictor))
    return Schedule("cosmos_unipc", tuple(steps), ticks)


def _lambda(sigma: float) -> float:
    return log(1 - sigma) - log(sigma)


def _corrector(sigmas: list[float], i: int, order: int) -> Corrector:
    """Of the sample at step ``i``, once the model has been asked there; ``order`` of the
    prediction that led there.
    """
    s, s0 = sigmas[i], sigmas[i - 1]
    h = _lambda(s) - _lambda(s0)
    e = expm1(-h)
    scale = -(1 - s) * e
    if order == 1:
        return Corrector(s / s0, scale * 0.5, 0.0, scale * 0.5)
    r = (_lambda(sigmas[i - 2]) - _lambda(s0)) / h
    k1 = e / -h - 1
    b1, b2 = k1 / e, 2 * (k1 / -h - 0.5) / e
    # solve [[1, 1], [r, 1]] (c1, c2) = (b1, b2)
    c1 = (b2 - b1) / (r - 1)
    c2 = b1 - c1
    # c1 (m_before - m_last) / r + c2 (x0 - m_last)
    return Corrector(s / s0, scale * (1 - c1 / r - c2), scale * c1 / r, scale * c2)


def _predictor(sigmas: list[float], i: int, order: int) -> Predictor:
    s, s_next = sigmas[i], sigmas[i + 1]
    if s_next == 0.0:
        return Predictor(0.0, 1.0, 0.0)
    h = _lambda(s_next) - _lambda(s)
    scale = -(1 - s_next) * expm1(-h)
    if order == 1:
        return Predictor(s_next / s, scale, 0.0)
    r = (_lambda(sigmas[i - 1]) - _lambda(s)) / h
    return Predictor(s_next / s, scale * (1 - 0.5 / r), scale * 0.5 / r)
