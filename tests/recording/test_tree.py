"""Structures: closed, exact, and back again."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import struct
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import UnkeyableArgument
from ostinato.recording import tree


class Pair(NamedTuple):
    first: Any
    second: Any


class Sub(Pair):
    pass


@dataclasses.dataclass
class Result:
    main: Any
    levels: Any = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Output(collections.OrderedDict[str, Any]):
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def make_tensor() -> torch.Tensor:
    return torch.zeros(1)


atoms: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([torch.float32, torch.device("cpu"), torch.strided, Colour.RED, Colour.BLUE]),
    st.sampled_from([torch.Size([1, 2]), slice(1, 2, None), range(3), ...]),
)
leaves = st.one_of(atoms, st.builds(make_tensor))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Result, inner, inner),
        st.builds(Frozen, inner),
    ),
    max_leaves=8,
)


def flat(value: Any) -> tuple[Any, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    return tree.flatten(value, tensors), tensors


@settings(max_examples=150, deadline=None)
@given(values)
def test_rebuild_gives_the_same_structure_with_new_tensors(value: Any) -> None:
    structure, tensors = flat(value)
    new = [torch.full((2,), float(i)) for i in range(len(tensors))]
    again, found = flat(tree.rebuilder(value)(new))
    assert again == structure and hash(again) == hash(structure)
    assert all(a is b for a, b in zip(found, new, strict=True))
    assert isinstance(tree.describe(structure), str)
    assert flat(tree.skeleton(value))[0] == structure


DISTINCT = [
    1,
    1.0,
    True,
    complex(1),
    "1",
    b"1",
    0,
    0.0,
    -0.0,
    False,
    None,
    complex(0, -0.0),
    complex(0, 0.0),
    math.nan,
    struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0],
    math.inf,
    (),
    [],
    {},
    (1,),
    [1],
    {"1": 1},
    {1: 1},
    {True: 1},
    Pair(1, 2),
    (1, 2),
    Sub(1, 2),
    torch.Size([1, 2]),
    range(1, 2),
    slice(1, 2),
    slice(1, 2, 1),
    slice(1.0, 2),
    Result(1),
    Result(1, []),
    Frozen(1),
    Frozen(True),
    Colour.RED,
    Colour.BLUE,
    torch.float32,
    torch.float64,
    torch.device("cpu"),
    torch.device("cpu:0"),
    torch.strided,
    torch.contiguous_format,
    make_tensor(),
    (make_tensor(), 1),
    (1, make_tensor()),
]


def test_values_that_differ_have_structures_that_differ() -> None:
    structures = [flat(v)[0] for v in DISTINCT]
    for i, a in enumerate(structures):
        for j, b in enumerate(structures):
            assert (a == b) == (i == j), (DISTINCT[i], DISTINCT[j])


class Unknown:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Unknown(),
        {1, 2},
        len,
        int,
        Output(a=1),
        collections.deque([1]),
        type("MyInt", (int,), {})(3),
        {Unknown(): 1},
        {1.0: 1},
        torch.nn.UninitializedParameter(),
        bytearray(b"1"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_an_unknown_type_is_an_error_that_names_it(value: Any) -> None:
    for wrapped in (value, [value], Result(value)):
        with pytest.raises(UnkeyableArgument, match="expected"):
            flat(wrapped)


def test_a_dataclass_with_more_than_its_fields() -> None:
    result = Result(1)
    result.extra = torch.zeros(1)  # type: ignore[attr-defined]
    with pytest.raises(UnkeyableArgument, match="extra"):
        flat(result)
    pair = Sub(1, 2)
    pair.extra = 3  # type: ignore[attr-defined]
    with pytest.raises(UnkeyableArgument):
        flat(pair)


def test_a_dataclass_that_is_a_dictionary() -> None:
    from transformers.utils import ModelOutput

    @dataclasses.dataclass
    class Answer(ModelOutput):  # type: ignore[misc]
        hidden: Any = None
        pooled: Any = None

    answer = Answer(hidden=torch.zeros(2))
    structure, tensors = flat(answer)
    rebuilt = tree.rebuilder(answer)([torch.ones(2)])
    assert type(rebuilt) is Answer and rebuilt["hidden"] is rebuilt.hidden
    assert rebuilt.hidden.tolist() == [1.0, 1.0] and rebuilt.pooled is None and len(rebuilt) == 1
    assert flat(rebuilt)[0] == structure and len(tensors) == 1


def test_describe() -> None:
    value = ({"scale": 2.0, "on": True}, [make_tensor(), None], Result(1, "x"))
    text = tree.describe(flat(value)[0])
    assert text == "({'scale': 2.0, 'on': True}, [*, None], Result(main=1, levels='x'))"
