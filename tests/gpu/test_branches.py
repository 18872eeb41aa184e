"""Calls of a region that a recording runs beside what follows them."""

from __future__ import annotations

import pytest
import torch

import ostinato
from ostinato import state
from ostinato.recording.cuda_branches import Branches
from tests.gpu.conftest import Make
from tests.gpu.gpu_mutations import assert_fails_under
from tests.gpu.regions import T, check_exact, few, refused, same, tensor, waves

pytestmark = pytest.mark.device

SIZE = 1 << 22


def late(x: T) -> T:
    """Reads ``x`` after work of its own, when what goes on has long used free memory again."""
    y = torch.ones_like(x)
    for _ in range(3):
        y = waves(y)
    return y + x


def forking(x: T) -> tuple[T, ...]:
    levels = []
    with state.branching() as aside:
        for _ in range(4):
            x = few(x)
            levels.append(aside(late, x))
    return x, *levels


def want(x: T) -> tuple[T, ...]:
    levels = []
    for _ in range(4):
        x = few(x)
        levels.append(late(x))
    return x, *levels


def count_forks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    forks: list[object] = []
    original = Branches.aside

    def aside(self: Branches, fn: object, args: tuple[object, ...]) -> object:
        forks.append(fn)
        return original(self, fn, args)  # type: ignore[arg-type]

    monkeypatch.setattr(Branches, "aside", aside)
    return forks


@pytest.mark.parametrize(
    "name", ["cuda_branches.arguments_are_not_held", "cuda_branches.are_not_joined"]
)
def test_branches_are_right(graph: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        graphed = graph(forking)
        for seed in range(5):
            x = tensor(seed, SIZE)
            with ostinato.route("exact"):
                got = graphed(x)
            assert all(same(a, b) for a, b in zip(got, want(x), strict=True))

    assert_fails_under(name, check, monkeypatch)


def test_a_recording_forks_and_a_direct_call_does_not(
    graph: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = count_forks(monkeypatch)
    x = tensor(0, 4096)
    graphed = graph(forking)
    with ostinato.route("direct"):
        graphed(x)
    assert forks == []
    graphed.record(x)
    assert len(forks) == 4


def test_an_error_beside_the_path_is_healed(graph: Make) -> None:
    def failing(x: T) -> T:
        with state.branching() as aside:
            y = aside(few, x)
            z = aside(torch.Tensor.item, x[0])
        return y + z

    graphed, x = graph(failing), tensor(0, 4096)
    with refused(".*"):
        graphed.record(x)
    check_exact(graph(few), few, [(tensor(seed, 4096),) for seed in range(3)])
