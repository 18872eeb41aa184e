"""All towers against transformers' on checkpoints that it saved, and how sensitive that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ostinato.vision.contract import Grid, Layout
from ostinato.vision.layout import Layouts
from ostinato.vision.load import load_tower
from ostinato.vision.tower import Tower
from tests.vision.references import (
    FAMILIES,
    MIXED_GRIDS,
    distance,
    make_model,
    make_patches,
    run,
    run_reference,
)

TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FAMILIES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[nn.Module, Tower]:
    """transformers' model, and our tower loaded from what it saved."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    model = make_model(request.param)
    model.save_pretrained(directory)
    return model, load_tower(directory)


def layout_and_patches(tower: Tower, grids: tuple[Grid, ...]) -> tuple[Layout, torch.Tensor]:
    layout = Layouts(tower.config).exact(grids)
    return layout, make_patches(layout.num_patches, tower.config.patch_width)


def test_within_tolerance_of_transformers_on_a_mixed_batch(pair: tuple[nn.Module, Tower]) -> None:
    model, tower = pair
    layout, patches = layout_and_patches(tower, MIXED_GRIDS)
    ours, theirs = run(tower, patches, layout), run_reference(model, patches, MIXED_GRIDS)
    assert len(ours) == len(theirs) == 1 + len(tower.config.deepstack_blocks)
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.shape == reference.shape == (layout.num_tokens, tower.config.out_width)
        assert distance(mine, reference) <= TOLERANCE


sides = st.integers(1, 9).map(lambda units: 2 * units)


@settings(max_examples=15, deadline=None)
@given(grids=st.lists(st.tuples(st.integers(1, 3), sides, sides), min_size=1, max_size=4))
def test_within_tolerance_of_transformers_on_drawn_batches(
    pair: tuple[nn.Module, Tower], grids: list[Grid]
) -> None:
    model, tower = pair
    layout, patches = layout_and_patches(tower, tuple(grids))
    ours, theirs = run(tower, patches, layout), run_reference(model, patches, grids)
    for mine, reference in zip(ours, theirs, strict=True):
        assert distance(mine, reference) <= TOLERANCE


def test_sensitive_to_the_image(pair: tuple[nn.Module, Tower]) -> None:
    _, tower = pair
    layout, patches = layout_and_patches(tower, MIXED_GRIDS)
    other = make_patches(layout.num_patches, tower.config.patch_width, seed=2)
    for mine, swapped in zip(run(tower, patches, layout), run(tower, other, layout), strict=True):
        assert distance(swapped, mine) >= 100 * TOLERANCE


@pytest.mark.parametrize(
    "field", ["positions", "interpolation_indices", "interpolation_weights", "window_inverse"]
)
def test_sensitive_to_positions(pair: tuple[nn.Module, Tower], field: str) -> None:
    _, tower = pair
    layout, patches = layout_and_patches(tower, MIXED_GRIDS)
    array = getattr(layout.arrays, field)
    if array is None:
        pytest.skip("this tower has no such input")
    arrays = layout.arrays._replace(**{field: np.roll(array, 1, axis=0)})
    shifted = Layout(layout.grids, layout.item_patches, layout.item_tokens, layout.size, arrays)
    for mine, moved in zip(run(tower, patches, layout), run(tower, patches, shifted), strict=True):
        assert distance(moved, mine) >= 100 * TOLERANCE


def test_sensitive_to_boundaries_at_equal_lengths(pair: tuple[nn.Module, Tower]) -> None:
    _, tower = pair
    layouts = Layouts(tower.config)
    two, one = layouts.exact([(2, 8, 8)]), layouts.exact([(1, 8, 8), (1, 8, 8)])
    wide = layouts.exact([(1, 16, 8)])
    patches = make_patches(128, tower.config.patch_width)
    same, split = run(tower, patches, two), run(tower, patches, one)
    for mine, frames, whole in zip(same, split, run(tower, patches, wide), strict=True):
        assert torch.equal(mine, frames)
        assert distance(whole, mine) >= 100 * TOLERANCE


def test_deepstack_levels_are_distinct(pair: tuple[nn.Module, Tower]) -> None:
    """Dropping, repeating or swapping a level would show in the comparison above."""
    _, tower = pair
    if not tower.config.deepstack_blocks:
        pytest.skip("this tower has no DeepStack")
    layout, patches = layout_and_patches(tower, MIXED_GRIDS)
    results = run(tower, patches, layout)
    for index, mine in enumerate(results):
        for other in (*results[:index], *results[index + 1 :], torch.zeros_like(mine)):
            assert distance(other, mine) >= 100 * TOLERANCE
