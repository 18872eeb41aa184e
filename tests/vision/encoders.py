"""Recorded tiny towers on the tape, and batches to give them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from ostinato import GraphConfig
from ostinato.recording.cache import Budget
from ostinato.recording.runner import Runner
from ostinato.recording.tape import TapeLane
from ostinato.vision.contract import Grid
from ostinato.vision.encoder import Encoded, Encoder
from ostinato.vision.load import load_tower
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import tower_rungs
from ostinato.vision.tower import Tower

TINY = ("tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3-vl")
TOP = 256
MOST_PATCHES = 1024
MIB = 1 << 20
NEVER = 1 << 30
TOLERANCE = 1e-5  # of a rung against the unpadded direct call, float32


class NoPreprocessor:
    def close(self) -> None:
        return None


def make(
    tower: Tower, *, budget_bytes: int = 256 * MIB, top: int = TOP, **graph: Any
) -> tuple[Encoder, RecordedTower]:
    """An encoder on a lane of its own, whose temporaries hold NaN before each replay."""
    runner = Runner(TapeLane(poison=True), Budget(budget_bytes))
    rungs = tower_rungs(tower.config, top=top, ratio=2.0)
    recorded = RecordedTower(tower, runner, GraphConfig(**graph), rungs)
    return Encoder(recorded, NoPreprocessor()), recorded  # type: ignore[arg-type]


@cache
def tower_of(name: str) -> Tower:
    return load_tower(name).eval()


def settle(recorded: RecordedTower) -> None:
    """Wait until what was to be recorded off the path is."""
    recorded._runner.lane.run_when_idle(lambda: None, is_long=True).result(timeout=60)


def patches_for(encoder: Encoder, grids: Sequence[Grid], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    num_rows = sum(t * h * w for t, h, w in grids)
    return torch.randn(num_rows, encoder.config.patch_width, generator=generator)


def direct(encoder: Encoder, patches: torch.Tensor, grids: Sequence[Grid]) -> list[torch.Tensor]:
    """The whole batch in one direct call, each item's embeddings and levels side by side."""
    recorded = encoder._recorded
    layout = recorded.layouts.exact(grids)
    with torch.inference_mode():
        output = recorded._direct(patches, layout)()
    together = torch.cat([output.embeddings, *output.deepstack], dim=1)
    return list(torch.split(together, list(layout.item_tokens)))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def check(encoder: Encoder, got: Sequence[Encoded], patches: torch.Tensor, grids: Any) -> str:
    """Equal bytes where one exact recording served the batch, else close; the routes."""
    want = direct(encoder, patches, grids)
    assert [e.grid_thw for e in got] == list(grids)
    routes = {e.route for e in got}
    is_one_exact = {(r.route, dict(r.rung).get("patches")) for r in routes} == {
        ("exact", len(patches))
    }
    for ours, theirs in zip(got, want, strict=True):
        assert ours.packed.shape == theirs.shape
        if is_one_exact:
            assert torch.equal(ours.packed, theirs)
        else:
            assert distance(ours.packed, theirs) <= TOLERANCE
    return "+".join(sorted({r.route for r in routes}))


@st.composite
def batches(draw: st.DrawFn) -> list[Grid]:
    """1 to 12 images and videos, odd grids and single rows among them."""
    sides = st.sampled_from([2, 2, 4, 6, 8, 10, 14, 22])
    grids: list[Grid] = []
    left = MOST_PATCHES
    for _ in range(draw(st.integers(1, 12))):
        grid = (draw(st.sampled_from([1, 1, 1, 2, 5])), draw(sides), draw(sides))
        if grid[0] * grid[1] * grid[2] <= left:
            grids.append(grid)
            left -= grid[0] * grid[1] * grid[2]
    return grids or [(1, 2, 2)]
