"""Random draws, and a warm-up that leaves no trace of itself (contract 4)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.gpu.conftest import Make
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.regions import DEVICE, HAS_GPU, T, exactly, few, refused, same, tensor, waves


def draws(x: T) -> T:
    return F.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(x.shape, device=x.device)


def test_random_draws_follow_the_seed_and_differ(graph: Make) -> None:
    graphed, x = graph(draws), tensor(0, 4096)
    exactly(graphed, x)
    torch.manual_seed(11)
    want = [draws(x) for _ in range(4)]
    torch.manual_seed(11)
    got = [exactly(graphed, x) for _ in range(4)]
    assert all(map(same, got, want))
    assert not same(got[0], got[1])
    torch.manual_seed(11)
    mixed = [draws(x), exactly(graphed, x), draws(x), exactly(graphed, x)]
    assert all(map(same, mixed, want))


def test_a_private_generator_is_followed(graph: Make) -> None:
    private = torch.Generator(device=DEVICE)

    def noisy(x: T) -> T:
        return waves(x) + torch.randn(x.shape, device=x.device, generator=private)

    graphed, x = graph(noisy), tensor(0, 4096)
    exactly(graphed, x)
    before = device_draws()
    private.manual_seed(5)
    want = [noisy(x) for _ in range(3)]
    private.manual_seed(5)
    assert all(same(exactly(graphed, x), w) for w in want)
    assert torch.equal(device_draws(), before)


def device_draws() -> T:
    """The state of the device's own generator."""
    return torch.cuda.get_rng_state() if HAS_GPU else torch.get_rng_state()


def test_warm_up_leaves_no_trace(graph: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        norm = nn.BatchNorm1d(16).to(DEVICE).train().requires_grad_(False)
        twin, x = copy.deepcopy(norm), tensor(0, 8, 16)

        def step(x: T) -> T:
            return F.dropout(norm(x), 0.5)

        graphed = graph(step)
        torch.manual_seed(3)
        before = device_draws()
        graphed.record(x)
        assert torch.equal(device_draws(), before)
        assert all(map(same, norm.buffers(), twin.buffers()))
        got = [exactly(graphed, x) for _ in range(3)]
        torch.manual_seed(3)
        want = [F.dropout(twin(x), 0.5) for _ in range(3)]
        assert all(map(same, got, want))
        assert all(map(same, norm.buffers(), twin.buffers()))

    assert_fails_under("probe.leaves_its_trace", check, monkeypatch)


def test_declared_state_is_not_touched_and_large_state_refused(graph: Make) -> None:
    pages, scratch = torch.zeros(4, 16, device=DEVICE), torch.zeros(4, 16, device=DEVICE)

    def append(pages: T, x: T) -> T:
        pages[0].add_(x)
        return few(pages.sum(0))

    graphed = graph(
        append,
        writes=("pages",),
        state=(pages,),
        gate_inputs=[((scratch, tensor(9, 16)), {})],
    )
    graphed.record(pages, tensor(0, 16))
    assert not pages.any()
    twin = torch.zeros(4, 16, device=DEVICE)
    for seed in range(3):
        x = tensor(seed, 16)
        assert same(exactly(graphed, pages, x), append(twin, x))
    assert same(pages, twin)

    large = torch.zeros(80 << 20, dtype=torch.uint8, device=DEVICE)

    def spoil(x: T) -> T:
        large.fill_(1)
        return few(x)

    with refused("large-state"):
        graph(spoil).record(tensor(0, 16))
    assert not large.any()
