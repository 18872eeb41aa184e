"""The survey finds what code can read, and leaves libraries alone."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import nn

from ostinato.recording.survey import survey

TABLE = torch.ones(1)
UNUSED = torch.ones(2)
NESTED = {"a": [torch.ones(3), {"b": (torch.ones(4),)}]}


@dataclasses.dataclass(slots=True)
class Slotted:
    weight: Any


class Plain:
    def __init__(self) -> None:
        self.weight = torch.ones(6)
        self.other = torch.ones(7)

    @property
    def doubled(self) -> Any:
        return self.weight * 2

    def method(self, x: Any) -> Any:
        return x * self.doubled


def sizes_of(fn: Any) -> set[int]:
    return {t.numel() for t in survey(fn).tensors}


def test_globals_by_name() -> None:
    assert sizes_of(lambda x: x * TABLE) == {1}
    assert sizes_of(lambda x: x * NESTED["a"][0]) == {3, 4}


def test_objects() -> None:
    slotted, plain = Slotted(torch.ones(5)), Plain()
    assert sizes_of(lambda x: x * slotted.weight) == {5}
    assert sizes_of(plain.method) == {6}
    assert sizes_of(functools.partial(lambda x, y: x * y, y=TABLE)) == {1}
    assert sizes_of(lambda x: x * getattr(plain, "oth" + "er")) >= {6, 7}


def test_functions_inside_functions_and_wrappers() -> None:
    @functools.cache
    def table(n: int) -> Any:
        return TABLE * n

    def outer(x: Any) -> Any:
        def inner() -> Any:
            return x * table(3)

        return inner()

    assert sizes_of(outer) == {1}
    assert sizes_of(staticmethod(outer)) == {1}


def test_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    found = survey(model)
    want = [*model.parameters(), *model.buffers()]
    assert {id(t) for t in found.tensors} == {id(t) for t in want}
    labels = {slot.label for slot in found.slots}
    assert {"fn.0.weight", "fn.1.running_mean", "fn.0.training"} <= labels


def test_cycles_end() -> None:
    loop: list[Any] = [torch.ones(8)]
    loop.append(loop)
    assert sizes_of(lambda: loop) == {8}


def test_libraries_are_not_entered() -> None:
    found = survey(lambda x: torch.nn.functional.relu(x) + torch.pi)
    assert found.tensors == []
    assert {s.name for s in found.slots} == {"__code__", "__defaults__", "__kwdefaults__"}


class HiddenModule:
    """Like the types of Cython's functions: the class's module is a descriptor."""

    __module__ = property(lambda self: "hidden")  # type: ignore[assignment]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_types_that_hide_their_module_are_built_in() -> None:
    hidden = HiddenModule()
    found = survey(lambda x: hidden(x))
    assert found.tensors == []
    survey(hidden)
