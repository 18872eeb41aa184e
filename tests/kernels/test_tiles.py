"""Tiles: which one is taken, and that none of them changes an answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ostinato.kernels.gelu
import ostinato.kernels.norm
import ostinato.kernels.position_interpolation_add
import ostinato.kernels.rope  # noqa: F401  (registers operators)
from ostinato.kernels import tiles
from ostinato.kernels.compare import first_difference
from ostinato.kernels.tiles import Tile, candidates, tile, trying
from tests.kernels.agreement import operator


def test_the_tried_tile_goes_before_the_measured_one_and_that_before_the_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiles, "BEST", {})
    guess, best, tried = tile("layer_norm", 1152), Tile(2, 2048, 8), Tile(4, 2048, 4)
    assert guess not in (best, tried)
    monkeypatch.setitem(tiles.BEST, ("layer_norm", 1152), best)
    assert (tile("layer_norm", 1152), tile("rms_norm", 1152)) == (best, guess)
    with trying(tried):
        assert tile("layer_norm", 1152) == tried
    assert tile("layer_norm", 1152) == best


@pytest.mark.parametrize(
    ("name", "width", "heads"),
    [
        *[(name, width, 1) for name in ("layer_norm", "modulate") for width in (256, 1152, 4096)],
        *[("gelu", 4320, 1), ("swiglu", 3456, 1), ("fp8_norm", 1152, 1), ("sample", 151_936, 1)],
        *[("rope", 64, 4), ("norm_rope", 72, 16), ("paged_cache_write", 1024, 1)],
    ],
)
def test_candidates_are_few_distinct_powers_of_two_and_hold_whole_rows(
    name: str, width: int, heads: int
) -> None:
    found = candidates(name, width, heads)
    assert 1 < len(found) == len(set(found)) < 20
    assert all(n & (n - 1) == 0 for t in found for n in t)
    if name in ("layer_norm", "modulate", "fp8_norm", "paged_cache_write"):
        assert all(t.columns >= width for t in found)


CALLS = {
    "gelu": lambda: (torch.randn(5, 70), None, "silu"),
    "add_rms_norm": lambda: (torch.randn(5, 70), torch.randn(5, 70), torch.ones(70), 1e-6),
    "norm_rope": lambda: (
        *(torch.randn(5, 12 * 20), torch.randn(5, 10), torch.randn(5, 10), torch.randn(20)),
        *(torch.randn(20), 1e-6, 8, 2, 20, "half"),
    ),
    "position_interpolation_add": lambda: (
        *(torch.randn(5, 70), torch.randn(9, 70)),
        *(torch.randint(9, (5, 4)), torch.randn(5, 4)),
    ),
}


@pytest.mark.parametrize(
    ("name", "tried"),
    [
        *[("gelu", Tile(1, 64, 4)), ("gelu", Tile(1, 512, 4))],
        *[("add_rms_norm", Tile(1, 128, 1)), ("add_rms_norm", Tile(8, 128, 4))],
        *[("norm_rope", Tile(1, 8, 4)), ("norm_rope", Tile(4, 4, 2)), ("norm_rope", Tile(8, 2, 1))],
        *[("position_interpolation_add", Tile(2, 32, 4))],
    ],
)
def test_a_tile_changes_no_answer(name: str, tried: Tile) -> None:
    subject, args = operator(name), CALLS[name]()
    with np.errstate(all="ignore"):
        usual = subject.kernel(*args)
        with trying(tried):
            other = subject.kernel(*args)
    as_list = [list(x) if isinstance(x, tuple) else [x] for x in (usual, other)]
    is_summed = subject.tolerance is not None
    allowed = [1e-6 * (1 + x.abs()) for x in as_list[0]] if is_summed else None
    assert not first_difference(*as_list, allowed)
    want = subject.reference(*args)
    for have, expected in zip(as_list[1], want if isinstance(want, tuple) else [want], strict=True):
        torch.testing.assert_close(have, expected, rtol=1e-5, atol=1e-5)
