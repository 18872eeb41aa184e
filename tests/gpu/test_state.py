"""Weights, Python values and modes (contract 1, 7)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ostinato import GraphConfig
from tests.gpu.conftest import Make
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.regions import DEVICE, T, exactly, few, refused, same, tensor, waves


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32))
    return made.to(DEVICE).requires_grad_(False)


def _replace(module: nn.Sequential) -> None:
    module[0].weight = nn.Parameter(tensor(5, 64, 32), requires_grad=False)


def _repoint(module: nn.Sequential) -> None:
    module[0].weight.data = tensor(6, 64, 32)


def _swap_layers(module: nn.Sequential) -> None:
    module[0] = nn.Linear(32, 64, device=DEVICE).requires_grad_(False)


def _cast_and_back(module: nn.Sequential) -> None:
    module.half().float()


def _load_assigned(module: nn.Sequential) -> None:
    module.load_state_dict(copy.deepcopy(mlp(7).state_dict()), assign=True)
    module.requires_grad_(False)


def _freed_and_reused(module: nn.Sequential) -> None:
    shape = (32, 64)
    module[2].weight = nn.Parameter(torch.zeros(shape, device=DEVICE), requires_grad=False)
    scribbles = [torch.full(shape, float("nan"), device=DEVICE) for _ in range(16)]
    assert scribbles


def _in_place(module: nn.Sequential) -> None:
    module.load_state_dict(mlp(8).state_dict())
    double(module[3])


def double(layer: Any) -> None:
    layer.weight.mul_(2)


CHANGES = [_replace, _repoint, _swap_layers, _cast_and_back, _load_assigned, _freed_and_reused]


@pytest.mark.parametrize("change", [*CHANGES, _in_place])
def test_weights_that_move_are_followed(graph: Make, change: Callable[[Any], None]) -> None:
    module, x = mlp(), tensor(1, 8, 32)
    graphed = graph(module, config=GraphConfig(min_hits=1))
    assert same(exactly(graphed, x), module(x))
    change(module)
    for seed in range(3):
        x = tensor(seed, 8, 32)
        assert same(exactly(graphed, x), module(x))


def test_a_moved_weight_is_seen_only_by_the_ledger(
    graph: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        test_weights_that_move_are_followed(graph, _replace)

    assert_fails_under("ledger.addresses_are_not_watched", check, monkeypatch)


def test_weights_written_in_place_need_no_new_recording(graph: Make) -> None:
    module, x = mlp(), tensor(1, 8, 32)
    graphed = graph(module)
    exactly(graphed, x)
    double(module[0])
    assert same(exactly(graphed, x), module(x))
    assert graphed.stats().num_recorded == 1


class Stepper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sigma = 1.0
        self.num_calls = 0
        self.mask = tensor(3, 16)

    def forward(self, x: T, cap: int = 4) -> T:
        return few(x * self.sigma + self.mask) * cap


def test_python_numbers_are_right_or_refused(graph: Make) -> None:
    module, x = Stepper(), tensor(0, 16)
    graphed = graph(module)
    for sigma, cap in [(1.0, 4), (0.5, 4), (1.0, 4), (1.0, 5), (0.25, 9), (1.0, 4)]:
        module.sigma = sigma
        assert same(exactly(graphed, x, cap), module(x, cap))
    module.mask = tensor(4, 16)
    assert same(exactly(graphed, x), module(x))

    class Counting(Stepper):
        def forward(self, x: T, cap: int = 4) -> T:
            self.num_calls += 1
            return few(x * self.num_calls)

    counting = Counting()
    with refused("python-state"):
        graph(counting).record(x)
    assert counting.num_calls == 0

    def reads(x: T) -> T:
        return x * x.sum().item()

    with refused("host-scalar"):
        graph(reads).record(x)


@pytest.mark.parametrize("is_inference", [False, True])
def test_modes_do_not_mix(graph: Make, is_inference: bool) -> None:
    module = nn.Sequential(mlp(), nn.Dropout(0.5)).to(DEVICE)
    graphed = graph(module)
    with torch.inference_mode(is_inference):
        for is_training, is_cast, is_off in [(0, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1), (0, 0, 1)]:
            module.train(bool(is_training))
            x = tensor(1, 8, 32)
            with (
                torch.set_grad_enabled(not is_off),
                torch.autocast(DEVICE.type, torch.bfloat16, enabled=bool(is_cast)),
            ):
                exactly(graphed, x)
                torch.manual_seed(3)
                want = module(x)
                torch.manual_seed(3)
                assert same(exactly(graphed, x), want)


@pytest.mark.device
@pytest.mark.filterwarnings("ignore:Please use the new API")
def test_numeric_switches_are_part_of_the_key(graph: Make) -> None:
    weight, x = tensor(1, 512, 512), tensor(2, 512, 512)

    def product(x: T) -> T:
        return few(x @ weight)

    graphed, results = graph(product), []
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for is_allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = is_allowed
            results.append(exactly(graphed, x))
            assert same(results[-1], product(x))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert same(results[0], results[2]) and not same(results[0], results[1])


def test_alignment_and_strides_are_part_of_the_key(graph: Make) -> None:
    graphed = graph(waves)
    base = tensor(0, 66, 64)
    cases = [base[:64], base.reshape(-1)[1:4097].view(64, 64), base[:64].t(), base[:64, ::2]]
    cases += [base[:1].expand(8, 64), base[:64].view(8, 8, 64)[:, ::3].transpose(1, 2)]
    for x in cases:
        assert same(exactly(graphed, x), waves(x))
    assert graphed.stats().num_recorded == len(cases)
