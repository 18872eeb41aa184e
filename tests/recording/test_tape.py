"""A replay equals a direct call byte for byte, on inputs that the tape was not recorded with."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ostinato.recording.tape import TapeBackend
from tests.mutations import assert_fails_under
from tests.recording.programs import OPERATORS, Step
from tests.recording.tape_checks import T, check, check_program, inputs, record


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "name", [name for name in OPERATORS if name not in ("batch_norm", "history")]
)
def test_each_operator(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        for k in range(3):
            check(lambda x, y: OPERATORS[name](x * 1, y * 1, k), (4, 4), (4, 4))  # noqa: B023


steps = st.tuples(
    st.sampled_from(sorted(OPERATORS)),
    st.integers(0, 11),
    st.integers(0, 11),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=10), st.booleans())
def test_random_programs(program: list[Step], inference: bool) -> None:
    check_program(program, inference=inference)


@pytest.mark.parametrize(
    ("mutation", "program"),
    [
        ("tape.results_are_not_copied", [("add", 0, 1, 0)]),
        ("tape.live_shapes", [("reshape_in_place", 0, 1, 0)]),
        ("calls.schema_is_trusted", [("batch_norm", 0, 1, 0)]),
        ("undo.no_clone_before_write", [("history", 0, 1, 1)]),
    ],
)
def test_programs_fail_without_protection(
    mutation: str, program: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(mutation, lambda: check_program(program), monkeypatch)


@pytest.mark.parametrize("inference", [False, True])
def test_modules(inference: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Flatten(2),
        nn.TransformerEncoderLayer(9, 3, 16, dropout=0.0, batch_first=True),
        nn.Linear(9, 5),
    )
    model.requires_grad_(False).eval()
    with torch.inference_mode(inference):
        check(model, (2, 3, 7, 7))


def test_embedding_and_recurrence() -> None:
    table, cell = nn.Embedding(10, 6), nn.GRU(6, 5, batch_first=True)
    table.requires_grad_(False)
    cell.requires_grad_(False)
    check(lambda x: cell(table(x.argsort(1)))[0], (2, 7))


def test_composites_are_recorded_as_their_parts_in_inference_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight = torch.randn(2, 2, 3), torch.randn(4, 3)

    def check_parts() -> None:
        with torch.inference_mode():
            tape = TapeBackend().record(lambda: F.linear(x.reshape(4, 3), weight).flatten())
        names = [
            str(getattr(entry, "func", entry)) for _, entries in tape._blocks for entry in entries
        ]
        assert names == ["aten.mm.default"]

    assert_fails_under("calls.composites_stay_whole", check_parts, monkeypatch)


def test_views_and_empty_are_not_repeated() -> None:
    x, out = torch.randn(2, 3), torch.empty(3, 2)

    def body() -> None:
        torch.empty(5)
        out.copy_(x.t()[:].view_as(out).contiguous().unsqueeze_(0).squeeze_(0))

    tape = TapeBackend(poison=True).record(body)
    assert tape.num_nodes == 2  # the clone of contiguous(), and copy_
    assert tape.bytes_held == 5 * 4 + 6 * 4


def test_a_new_result_whatever_its_schema_says() -> None:
    """reshape, contiguous and to sometimes copy; an operator may return its argument."""
    check(lambda x: [x.t().reshape(6), x.contiguous().add(1), x.to(torch.float32).mul(2)], (2, 3))


def test_results_that_overlap_themselves_or_each_other() -> None:
    with torch.library._scoped_library("ostinato_test_tape", "DEF") as library:
        library.define("thrice(Tensor x) -> (Tensor, Tensor, Tensor)")

        def thrice(x: T) -> tuple[T, T, T]:
            whole = torch.stack([x + 1, x * 2])
            return whole[0], whole[1], whole[0, :1].expand(4, 3)

        library.impl("thrice", thrice, "CPU")
        check(lambda x: torch.ops.ostinato_test_tape.thrice(x), (2, 3))


def test_a_custom_operator_is_one_entry() -> None:
    with torch.library._scoped_library("ostinato_test_tape2", "DEF") as library:
        library.define("fill(Tensor x, Tensor(a!) out) -> ()")

        def fill(x: T, out: T) -> None:
            out.copy_(x.numpy().mean() + torch.zeros(()))

        library.impl("fill", fill, "CPU")

        def fn(x: T) -> T:
            out = torch.empty(3)
            torch.ops.ostinato_test_tape2.fill(x, out)
            return out

        tape, _ = record(fn, inputs(0, (2, 3)))
        assert tape.num_nodes == 2
        check(fn, (2, 3))
