"""A padded layout gives the real rows of the exact one, whatever the padding rows hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.vision.contract import Grid, Rung, VisionConfig
from ostinato.vision.examples import example_layouts
from ostinato.vision.layout import Layouts, to_tensors
from ostinato.vision.load import load_tower
from ostinato.vision.tower import Tower
from tests.vision.references import distance, make_patches, run

TINY = ("tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3-vl")
BATCHES: tuple[tuple[Grid, ...], ...] = (
    ((1, 8, 12), (3, 6, 10), (1, 2, 2)),
    ((1, 14, 18),),
    ((2, 2, 22), (1, 16, 16)),
    ((1, 2, 2),),
)


@pytest.fixture(scope="module", params=TINY)
def tower(request: pytest.FixtureRequest) -> Tower:
    return load_tower(request.param)


def make_rung(config: VisionConfig, *, num_segments: int = 12, max_segment: int = 256) -> Rung:
    num_windows = 40 if config.window_side else 0
    return Rung(360, num_segments, max_segment, num_windows, config.max_window_patches)


@pytest.mark.parametrize("grids", BATCHES)
@pytest.mark.parametrize("rung_shape", [(12, 256), (12, 360), (8, 300)])
def test_real_rows_are_close_to_the_exact_layout(
    tower: Tower, grids: tuple[Grid, ...], rung_shape: tuple[int, int]
) -> None:
    layouts = Layouts(tower.config)
    exact = layouts.exact(grids)
    rung = make_rung(tower.config, num_segments=rung_shape[0], max_segment=rung_shape[1])
    padded = layouts.padded(exact, rung)
    patches = make_patches(exact.num_patches, tower.config.patch_width)
    with_nan = torch.full((rung.num_patches, tower.config.patch_width), torch.nan)
    with_nan[: exact.num_patches] = patches
    for whole, mine in zip(run(tower, with_nan, padded), run(tower, patches, exact), strict=True):
        assert whole.shape == (rung.num_patches // 4, tower.config.out_width)
        assert whole[: exact.num_tokens].isfinite().all()
        assert whole[exact.num_tokens :].isnan().all()
        assert distance(whole[: exact.num_tokens], mine) <= 1e-5


def test_rows_that_are_finite_stay_finite_in_the_padding(tower: Tower) -> None:
    layouts = Layouts(tower.config)
    rung = make_rung(tower.config)
    padded = layouts.padded(layouts.exact(BATCHES[0]), rung)
    for whole in run(tower, torch.zeros(rung.num_patches, tower.config.patch_width), padded):
        assert whole.isfinite().all()


class _Operators(TorchDispatchMode):
    """Names of the operators that run; refuses what a recording cannot hold."""

    REFUSED = ("_local_scalar_dense", "lift_fresh", "equal", "nonzero", "masked_select")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
        assert name.split(".")[0] not in self.REFUSED, name
        assert not any(tag in func.tags for tag in tags), name
        self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_a_rung_runs_the_same_operators_for_every_layout(tower: Tower) -> None:
    """No host read, no new tensor from Python values, nothing that depends on the batch."""
    layouts = Layouts(tower.config)
    rung = make_rung(tower.config)
    examples = example_layouts(layouts, rung)
    assert len(examples) >= 2
    batches = [layouts.padded(layouts.exact(grids), rung) for grids in BATCHES]
    seen = []
    for layout in (*examples, *batches):
        patches = make_patches(rung.num_patches, tower.config.patch_width)
        tensors = to_tensors(layout.arrays)
        with torch.inference_mode(), _Operators() as mode:
            tower(patches, tensors, max_segment=256, max_window=rung.max_window)
        seen.append(mode.names)
    assert all(names == seen[0] for names in seen)
    assert seen[0].count("rotary_attention.default") == tower.config.depth
