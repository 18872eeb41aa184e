"""Steps around the region and inputs in odd places: nothing is skipped, nothing is dropped."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from ostinato.errors import UnkeyableArgument
from tests.mutations import assert_fails_under
from tests.recording.serving import T, check_calls, content, graphed, rand


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.register_forward_hook(lambda m, a, out: out * 0.5)
        self.register_forward_pre_hook(lambda m, a: (a[0] - 1,))
        self.register_forward_hook(lambda m, a, out: nn.functional.normalize(out))

    def forward(self, x: T) -> T:
        return self.inner(x) + 1  # type: ignore[no-any-return]


def check_hooks_are_part_of_the_region() -> None:
    tower = Tower().requires_grad_(False)
    served = check_calls(tower, [(rand(i, 2, 3),) for i in range(5)], using=graphed(tower))
    x = rand(9, 2, 3)
    for where in (tower, tower.inner):
        handle = where.register_forward_hook(lambda m, a, out: out + 7)
        for _ in range(2):
            assert content(served(x)) == content(tower(x))
        handle.remove()
        assert content(served(x)) == content(tower(x))


def test_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("ledger.nothing_changes", check_hooks_are_part_of_the_region, monkeypatch)


@dataclasses.dataclass
class Picture:
    pixels: T
    levels: list[T]
    grid: tuple[int, int]


class Request(NamedTuple):
    text: T
    pictures: dict[str, Picture]


def use(request: Request, *, positions: T | None = None, scale: Any = (1, {"by": 2.0})) -> T:
    total = request.text * scale[1]["by"]
    for name, picture in request.pictures.items():
        total = total + picture.pixels * len(name) + sum(picture.levels) * picture.grid[0]
    return total if positions is None else total + positions


def a_request(seed: int, names: tuple[str, ...], num_levels: int, grid: int) -> Request:
    pictures = {
        name: Picture(
            rand(seed + k, 3), [rand(seed + 10 * k + j, 3) for j in range(num_levels)], (grid, 1)
        )
        for k, name in enumerate(names, 1)
    }
    return Request(rand(seed, 3), pictures)


def check_every_tensor_reaches_the_recording(cases: list[tuple[Any, ...]]) -> None:
    served = graphed(use)
    for _ in range(2):
        held, want = [], []
        for seed, (names, num_levels, grid, has_positions) in enumerate(cases):
            request = a_request(100 * seed, names, num_levels, grid)
            positions = rand(seed, 3) if has_positions else None
            held.append(served(request, positions=positions))
            want.append(content(use(request, positions=positions)))
            assert served.why().route == "exact"
        assert [content(h) for h in held] == want


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.permutations(["a", "bb", "ccc"]).map(tuple),
            st.integers(1, 3),
            st.integers(1, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_tensor_reaches_the_recording(cases: list[tuple[Any, ...]]) -> None:
    check_every_tensor_reaches_the_recording(cases)


@pytest.mark.parametrize("mutation", ["tree.dictionaries_without_names", "buffers.never_loaded"])
def test_side_data_follows_its_item(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(("a", "bb"), 1, 1, False), (("bb", "a"), 1, 1, False), (("a", "bb"), 2, 3, True)]
    assert_fails_under(
        mutation, lambda: check_every_tensor_reaches_the_recording(cases), monkeypatch
    )


def test_a_place_without_a_slot_is_an_error() -> None:
    request = a_request(0, ("a",), 1, 1)
    request.pictures["a"].deepstack = rand(1, 3)  # type: ignore[attr-defined]
    with pytest.raises(UnkeyableArgument, match="deepstack"):
        graphed(use)(request)


def test_the_same_tensor_in_two_places() -> None:
    served = graphed(lambda x, y: (x - y, y))
    x, y = rand(0, 3), rand(1, 3)
    for a, b in ((x, x), (x, y), (y, x), (y, y)):
        got = served(a, b)
        assert content(got) == content((a - b, b)) and got[1] is b
