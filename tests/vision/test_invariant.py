"""``numerics="invariant"``: an item's bytes do not depend on what it is encoded with, or when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato import GraphConfig
from ostinato.vision.contract import Grid
from ostinato.vision.encoder import Encoder, load_encoder

OFF = GraphConfig(mode="off")
GRIDS: tuple[Grid, ...] = ((1, 4, 4), (1, 6, 10), (3, 4, 6), (1, 2, 2), (1, 12, 12), (2, 2, 8))
TOP = 128
"""Patches of the largest rung: the fifth grid has more."""


def load(model: str, graph: GraphConfig, **how: Any) -> Encoder:
    options: dict[str, Any] = {"numerics": "invariant", "top_patches": TOP} | how
    return load_encoder(model, device="cpu", graph=graph, **options)


def patches(encoder: Encoder, which: int) -> torch.Tensor:
    frames, rows, columns = GRIDS[which]
    generator = torch.Generator().manual_seed(which)
    return torch.randn(frames * rows * columns, encoder.config.patch_width, generator=generator).to(
        encoder.dtype
    )


def encoded(encoder: Encoder, order: Sequence[int]) -> list[bytes]:
    values = torch.cat([patches(encoder, i) for i in order])
    found = encoder.encode_patches(values, [GRIDS[i] for i in order])
    return [one.packed.contiguous().view(torch.uint8).numpy().tobytes() for one in found]


@pytest.fixture(scope="module", params=["tiny-qwen3-vl", "tiny-qwen2.5-vl"])
def model(request: Any) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: Any) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture(scope="module")
def alone(model: str, dtype: torch.dtype) -> list[bytes]:
    encoder = load(model, OFF, dtype=dtype)
    return [encoded(encoder, [i])[0] for i in range(len(GRIDS))]


@pytest.fixture(scope="module")
def recorded(model: str, dtype: torch.dtype) -> Iterator[Encoder]:
    encoder = load(model, GraphConfig(promote_hits=2, min_hits=2), dtype=dtype)
    yield encoder
    encoder.close()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.lists(st.integers(0, len(GRIDS) - 1), min_size=1, max_size=8))
def test_any_batch_gives_each_item_its_own_bytes(
    recorded: Encoder, alone: list[bytes], order: list[int]
) -> None:
    assert encoded(recorded, order) == [alone[i] for i in order]


def test_what_is_recorded_or_evicted_changes_no_byte(
    model: str, dtype: torch.dtype, alone: list[bytes]
) -> None:
    """Before a recording, after it, after many calls of one size, and after all is freed."""
    everything = list(range(len(GRIDS)))
    graph = GraphConfig(promote_hits=2, min_hits=2)
    encoder = load(model, graph, warm_up=False, dtype=dtype)
    routes = set()
    for _ in range(4):
        assert encoded(encoder, everything) == alone
        encoder._recorded._runner.lane.run_when_idle(lambda: None).result()
        values = torch.cat([patches(encoder, i) for i in everything])
        routes |= {e.route.route for e in encoder.encode_patches(values, GRIDS)}
    assert routes >= {"direct", "rung"}
    encoder.close()
    assert encoded(encoder, everything) == alone


def by_number_of_rows(encoder: Encoder) -> Encoder:
    """As a library does that has another algorithm for another number of rows."""

    def other(module: Any, given: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows * (1 + rows.shape[0] * 1e-4)

    encoder._recorded.tower.patch_embed.register_forward_hook(other)
    return encoder


@pytest.mark.parametrize(("numerics", "is_equal"), [("invariant", True), ("fast", False)])
def test_products_that_depend_on_the_number_of_rows_do_not_show(
    model: str, numerics: str, is_equal: bool
) -> None:
    encoder = by_number_of_rows(load(model, OFF, numerics=numerics))
    everything = list(range(len(GRIDS)))
    found = [encoded(encoder, [i])[0] for i in everything]
    assert (encoded(encoder, everything) == found) is is_equal
    assert (encoded(encoder, everything[::-1]) == found[::-1]) is is_equal


def test_each_item_has_the_smallest_rung_that_holds_it(recorded: Encoder) -> None:
    plan = recorded._plan(tuple(GRIDS))
    assert [call.items for call in plan.packing.calls] == [(i,) for i in range(len(GRIDS))]
    rungs = recorded._recorded._rungs
    for grid, call in zip(GRIDS, plan.calls, strict=True):
        holding = [r for r in rungs if r.num_patches > grid[0] * grid[1] * grid[2]]
        if not holding:
            assert call.rung is None
            continue
        assert call.rung is not None
        assert call.rung.num_patches <= min(r.num_patches for r in holding)
        assert call.rung.num_segments == min(
            r.num_segments for r in rungs if r.num_patches == call.rung.num_patches
        )
