"""Weights and closed form of real-time chunking, against numbers worked out by hand."""

from __future__ import annotations

from math import e, expm1, inf

import pytest
import torch

from ostinato.policy.chunking import (
    guidance_limit,
    guide,
    make_prefix,
    no_prefix,
    prefix_weights,
)


@pytest.mark.parametrize(
    ("schedule", "delay", "end", "expected"),
    [
        ("ZEROS", 2, 4, [1, 1, 0, 0, 0, 0]),
        ("ONES", 2, 4, [1, 1, 1, 1, 0, 0]),
        ("LINEAR", 2, 5, [1, 1, 0.75, 0.5, 0.25, 0]),
        ("LINEAR", 0, 3, [0.75, 0.5, 0.25, 0, 0, 0]),
        ("LINEAR", 9, 3, [1, 1, 1, 0, 0, 0]),
        ("EXP", 2, 3, [1, 1, 0.5 * expm1(0.5) / (e - 1), 0, 0, 0]),
        ("LINEAR", 2, 99, [1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("EXP", 3, 0, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_weights(schedule: str, delay: int, end: int, expected: list[float]) -> None:
    weights = prefix_weights(schedule, delay, end, 6)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32))


def test_the_strength_before_its_bound() -> None:
    assert guidance_limit(0.5) == pytest.approx(2.0)
    assert guidance_limit(0.8) == pytest.approx(0.8 / 0.2 * (0.64 + 0.04) / 0.64)
    assert guidance_limit(1.0) == inf and guidance_limit(0.0) == inf


@pytest.mark.parametrize(("sigma", "g"), [(0.5, 2.0), (0.9998, 10.0)])
def test_the_closed_form(sigma: float, g: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, 6, 3, generator=generator)
    left = torch.randn(4, 3, generator=generator)
    prefix = make_prefix(left, 6, delay=1, horizon=10)
    weights = torch.tensor([1, 0.75, 0.5, 0.25, 0, 0])[:, None]
    padded = torch.cat((left, torch.zeros(2, 3)))
    expected = v - g * (padded - (x - sigma * v)) * weights
    torch.testing.assert_close(guide(x, v, sigma, prefix), expected)
    assert torch.equal(guide(x, v, sigma, prefix)[4:], v[4:])


def test_without_a_prefix_the_velocity_keeps_its_bytes() -> None:
    x = torch.full((2, 3), inf)
    v = torch.tensor([[-0.0, 1.0, 2.0], [0.0, -1.0, 3.0]])
    guided = guide(x, v, 0.5, no_prefix(2, 3))
    assert torch.equal(guided.view(torch.int32), v.view(torch.int32))


def test_prefixes_that_cannot_be() -> None:
    left = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="at most 2"):
        make_prefix(left, 2, delay=0, horizon=1)
    with pytest.raises(ValueError, match="delay is -1"):
        make_prefix(left, 4, delay=-1, horizon=1)
    with pytest.raises(ValueError, match="schedule is 'STEP'"):
        make_prefix(left, 4, delay=0, horizon=1, schedule="STEP")
    with pytest.raises(ValueError, match="max_guidance_weight is 0"):
        make_prefix(left, 4, delay=0, horizon=1, max_guidance=0)
    with pytest.raises(ValueError, match="not finite"):
        make_prefix(left / 0, 4, delay=0, horizon=1)
