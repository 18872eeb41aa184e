"""Samplers against the specification's ticks, straight flows, and a plain second writing."""

from __future__ import annotations

from math import expm1, log

import pytest
import torch
from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.policy.solver import Schedule, Step, sample, schedule


def velocity(x: Tensor, time: float) -> Tensor:
    """A field that is neither straight nor linear."""
    return torch.sin(3 * x) * (0.5 + time) + 0.3 * x


def run(plan: Schedule, x: Tensor) -> Tensor:
    def model(step: Step, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(velocity(s, step.time) for s in streams)

    return sample(plan, (x,), model)[0]


def test_ticks_and_sigmas_of_four_steps_at_shift_five() -> None:
    plan = schedule("cosmos_unipc", 4, 5.0)
    assert plan.ticks == (999, 937, 833, 624)
    sigmas = [step.sigma for step in plan.steps]
    assert sigmas == pytest.approx([0.99980, 0.93727, 0.83306, 0.62469], abs=1e-5)
    assert [step.time for step in plan.steps] == pytest.approx([0.999, 0.937, 0.833, 0.624])
    one = schedule("cosmos_unipc", 1, 5.0)
    assert one.ticks == (999,) and one.steps[0].sigma == pytest.approx(0.99980, abs=1e-5)


def test_sigmas_are_float32_and_ticks_come_from_before_the_rounding() -> None:
    for num_steps in (1, 3, 4, 7, 50):
        plan = schedule("cosmos_unipc", num_steps, 5.0)
        for step, tick in zip(plan.steps, plan.ticks, strict=True):
            assert torch.tensor(step.sigma, dtype=torch.float32).item() == step.sigma
            assert tick == int(step.sigma * 1000 + 1e-4)


@pytest.mark.parametrize("sampler", ["cosmos_unipc", "euler"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 8])
def test_a_straight_flow_is_recovered(sampler: str, num_steps: int) -> None:
    plan = schedule(sampler, num_steps, 5.0)
    generator = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    first = plan.steps[0].sigma

    def model(step: Step, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (noise - x0,)

    start = first * noise + (1 - first) * x0
    # velocities are cast to float32
    torch.testing.assert_close(sample(plan, (start,), model)[0], x0, rtol=0, atol=1e-6)


def lam(sigma: float) -> float:
    return log(1 - sigma) - log(sigma)


def plain_unipc(plan: Schedule, x: Tensor) -> Tensor:
    """The specification's steps, one by one, with the small system solved by torch."""
    sigmas = [step.sigma for step in plan.steps] + [0.0]
    num = len(plan.steps)
    made: list[Tensor] = []
    y, order = x, 0
    for i, step in enumerate(plan.steps):
        s = sigmas[i]
        x0 = x - s * velocity(x, step.time)
        if i > 0:
            s0 = sigmas[i - 1]
            h = lam(s) - lam(s0)
            e = expm1(-h)
            last = made[-1]
            x = (s / s0) * y - (1 - s) * e * last
            if order == 1:
                x = x - (1 - s) * e * 0.5 * (x0 - last)
            else:
                r = (lam(sigmas[i - 2]) - lam(s0)) / h
                d = (made[-2] - last) / r
                hh = -h
                k1 = e / hh - 1
                k2 = k1 / hh - 0.5
                system = torch.tensor([[1.0, 1.0], [r, 1.0]], dtype=torch.float64)
                b = torch.tensor([k1 / e, 2 * k2 / e], dtype=torch.float64)
                c1, c2 = torch.linalg.solve(system, b).tolist()
                x = x - (1 - s) * e * (c1 * d + c2 * (x0 - last))
        made.append(x0)
        order = min(2, num - i, i + 1)
        y, s1 = x, sigmas[i + 1]
        if s1 == 0:
            return x0
        h = lam(s1) - lam(s)
        e = expm1(-h)
        following = (s1 / s) * x - (1 - s1) * e * x0
        if order == 2:
            r = (lam(sigmas[i - 1]) - lam(s)) / h
            following = following - (1 - s1) * e * 0.5 * (made[-2] - x0) / r
        x = following
    raise AssertionError


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 8])
def test_unipc_equals_its_steps_written_one_by_one(num_steps: int) -> None:
    plan = schedule("cosmos_unipc", num_steps, 5.0)
    x = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(run(plan, x), plain_unipc(plan, x), rtol=0, atol=2e-6)


def test_euler_moves_by_the_difference_of_times() -> None:
    plan = schedule("euler", 2, 5.0)
    assert [step.time for step in plan.steps] == pytest.approx([1.0, 2.5 / 3])
    x = torch.tensor([0.3, -0.7], dtype=torch.float64)
    t = 2.5 / 3
    middle = x + (t - 1) * velocity(x, 1.0)
    expected = middle + (0 - t) * velocity(middle, t)
    torch.testing.assert_close(run(plan, x), expected, rtol=0, atol=1e-6)


def test_the_last_step_returns_the_prediction_itself() -> None:
    plan = schedule("cosmos_unipc", 1, 5.0)
    x = torch.randn(8, generator=torch.Generator().manual_seed(2))
    expected = x - plan.steps[0].sigma * velocity(x, plan.steps[0].time)
    assert torch.equal(run(plan, x), expected)


@pytest.mark.parametrize(
    ("sampler", "num_steps", "shift", "message"),
    [
        ("ddim", 4, 5.0, "sampler is 'ddim'"),
        ("euler", 0, 5.0, "num_inference_steps is 0"),
        ("euler", 4, 0.0, "sampler_shift is 0.0"),
    ],
)
def test_schedules_that_cannot_be(sampler: str, num_steps: int, shift: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule(sampler, num_steps, shift)
