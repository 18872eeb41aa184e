"""A compiled piece is one operator: its results are its own, whatever the compiled code returns."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from ostinato.lm.compiled import CompiledPiece
from ostinato.recording.probe import probe


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # Inductor's own matters
def test_views_of_inputs_are_copied_and_a_probe_sees_one_operator() -> None:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("Inductor needs a C++ compiler, and there is neither g++ nor clang++")
    made: list[CompiledPiece] = []

    def backend(graph: fx.GraphModule, _: list[Any]) -> CompiledPiece:
        made.append(CompiledPiece(graph))
        return made[-1]

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.t(), (x + 1).relu()

    x = torch.randn(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(fn, fullgraph=True, dynamic=False, backend=backend)(x)
    (piece,) = made
    for rows in (3, 7):
        given = torch.randn(rows, 4)
        seen = probe(lambda: piece(rows, given), [given])  # noqa: B023
        assert seen.num_operations == 1
        turned, summed = seen.result
        assert torch.equal(turned, given.t())
        assert torch.equal(summed, (given + 1).relu())
        assert turned.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
