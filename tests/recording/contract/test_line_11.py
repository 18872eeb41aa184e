"""Line 11, writes and aliases: relations come back, undeclared writes are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ostinato
from ostinato.errors import RecordingRefused
from ostinato.recording.ladder import Axis
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed, rand


def check_undeclared_writes() -> None:
    def fn(x: T) -> T:
        return x.add_(1) * 2

    served = graphed(fn)
    for i in range(3):
        x, y = rand(i, 3), rand(i, 3)
        assert content([served(x), x]) == content([fn(y), y])
    assert "[input-write]" in served.why().reason


def check_declared_writes() -> None:
    def fn(x: T, out: T) -> T:
        out.mul_(x)
        return out + 1

    served = graphed(fn, writes=["out"])
    for strided in (False, True):
        for i in range(3):
            x, a, b = rand(i, 3, 3), rand(i + 9, 3, 3), rand(i + 9, 3, 3)
            if strided:
                a, b = a.t(), b.t()
            assert content([served(x, a), a]) == content([fn(x, b), b])
            assert served.why().route == "exact"


def check_relations() -> None:
    table = nn.Parameter(rand(0, 4, 4), requires_grad=False)

    def fn(x: T, y: T) -> dict[str, Any]:
        z = x + y
        return {
            "x": x,
            "row": y[1],
            "table": table,
            "part": table[:2],
            "z": z,
            "again": z,
            "turned": z.t(),
            "none": None,
            "three": 3,
        }

    served = graphed(fn)
    for i in range(3):
        x, y = rand(i, 4, 4), rand(i + 9, 4, 4)
        got, want = served(x, y), fn(x, y)
        assert content(got) == content(want) and served.why().route == "exact"
        assert got["x"] is x and got["three"] == 3
        for name in ("row", "part", "table"):
            assert got[name].data_ptr() == want[name].data_ptr()
        assert got["z"].data_ptr() == got["again"].data_ptr() == got["turned"].data_ptr()
        got["z"].fill_(1)
        assert (got["turned"] == 1).all() and got["turned"].stride() == (1, 4)
        got["row"].fill_(5)
        assert (y[1] == 5).all()


def check_python_values() -> None:
    flips = [0]

    def fn(x: T) -> tuple[T, int]:
        flips[0] += 1
        return x * 2, flips[0] % 2

    served = graphed(fn)
    flips[0] = 0
    got = [served(rand(i, 2))[1] for i in range(5)]
    assert got == [1, 0, 1, 0, 1]


def check_nested() -> None:
    """An inner recording is invisible to an outer one: inside it is the plain callable."""
    inner = graphed(lambda x: x * 2 + 1)
    inner(rand(0, 3))
    outer = graphed(lambda x: inner(x) - 3)
    for i in range(3):
        x = rand(i, 3)
        assert content(outer(x)) == content(x * 2 + 1 - 3)
        assert outer.why().route == "exact", outer.why()


def check_trace() -> None:
    served = graphed(lambda x: x * 2)
    x = rand(0, 3)
    served(x)
    before = served.stats().calls
    traced = torch.fx.experimental.proxy_tensor.make_fx(served)(x)
    assert any(n.op == "call_function" for n in traced.graph.nodes)
    assert content(traced(x + 1)) == content((x + 1) * 2)
    assert torch.equal(torch.func.vmap(served)(rand(1, 4, 3)), rand(1, 4, 3) * 2)
    assert served.stats().calls == before


def check_shared_memory_of_inputs() -> None:
    def fn(x: T, y: T) -> T:
        x.add_(1)
        return x + y

    served = graphed(fn, writes=["x"])
    served(rand(0, 3), rand(1, 3))
    a, b = rand(2, 3), rand(2, 3)
    assert content([served(a, a), a]) == content([fn(b, b), b])
    a, b = rand(2, 4), rand(2, 4)
    assert content([served(a[1:], a[:-1]), a]) == content([fn(b[1:], b[:-1]), b])


def relations(results: Any, x: T) -> Any:
    """Which share memory, how each lies, and whether a write to one shows in the others."""
    tensors = [*results, x]
    where = [t.untyped_storage().data_ptr() for t in tensors]
    with torch.no_grad():
        results[0].view(-1)[0] = 77.0
    return (
        [[a == b for b in where] for a in where],
        [(t.shape, t.stride()) for t in tensors],
        [bool((t == 77.0).any()) for t in tensors],
    )


ON_A_RUNG: dict[str, Callable[[T], tuple[T, ...]]] = {
    "twice": lambda x: (lambda y: (y, y))(x * 2),
    "turned": lambda x: (lambda y: (y, y.t()))(x * 2),
    "flat": lambda x: (lambda y: (y, y.view(-1), y + 1))(x * 2),
    "columns": lambda x: (lambda y: (y, y[:, :2], y[:, 2:]))(x * 2),
    "first row": lambda x: (lambda y: (y, y[0]))(x * 2),
    "input": lambda x: (x, x * 2),
    "columns of the input": lambda x: (x * 2, x[:, :2], x.t()),
}


def check_relations_on_a_rung() -> None:
    for name, fn in ON_A_RUNG.items():
        served = graphed(fn, grows={"x": {0: Axis("n", top=8, rungs=(4, 8))}})
        for n in (3, 4, 7):
            x, y = rand(n, n, 4), rand(n, n, 4)
            with ostinato.route("rung"):
                got, want = served(x), fn(y)
            assert content(got) == content(want), name
            assert relations(got, x) == relations(want, y), name


def test_a_view_that_padding_tears_apart_is_refused() -> None:
    served = graphed(lambda x: (x[:2], x * 2), grows={"x": {1: Axis("n", top=8, rungs=(8,))}})
    with pytest.raises(RecordingRefused, match=r"\[result-alias\] a result is a view of input 0"):
        served.record(rand(0, 4, 8))
    x = rand(0, 4, 5)
    assert served(x)[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        ("results.rungs_come_apart", check_relations_on_a_rung),
        ("rules.input-write", check_undeclared_writes),
        ("entry.no_write_back", check_declared_writes),
        ("results.aliases_are_copied", check_relations),
        ("results.first_values_stay", check_python_values),
        ("served.blind_to_others", check_nested),
        ("served.blind_to_others", check_trace),
        ("served.inputs_are_apart", check_shared_memory_of_inputs),
    ],
)
def test_relations(
    mutation: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(mutation, check, monkeypatch)


@pytest.mark.parametrize("n", [5, 6])
def test_a_rung_returns_the_callers_input_and_the_parameter(n: int) -> None:
    table = rand(1, 3)
    served = graphed(
        lambda x: (x, x * 2, x[:, :2], table), grows={"x": {0: Axis("n", top=6, rungs=(6,))}}
    )
    x = rand(0, n, 3)
    with ostinato.route("rung"):
        got = served(x)
    assert got[0] is x and got[3] is table and content(got[1:3]) == content((x * 2, x[:, :2]))
