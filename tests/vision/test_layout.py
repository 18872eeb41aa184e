"""Refusals, caching and bounds of ``Layouts``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.errors import InputError
from ostinato.vision.bounded import BoundedCache
from ostinato.vision.layout import Layouts, num_bytes, to_tensors
from tests.vision.configs import make_config


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([], "at least one item"),
        ([(1, 4, 4), (1, 3, 4)], r"multiples of 2 .*\(1, 3, 4\)"),
        ([(1, 4, 5)], r"multiples of 2 .*\(1, 4, 5\)"),
        ([(0, 4, 4)], r"below 1, got \(0, 4, 4\)"),
        ([(1, -2, 4)], r"below 1, got \(1, -2, 4\)"),
        ([(4, 4)], r"three integers .*\(4, 4\)"),
        ([(1.0, 4, 4)], r"three integers .*1.0"),
    ],
)
def test_absurd_grids_are_refused_by_value(grids: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Layouts(make_config()).exact(grids)


def test_grids_may_be_rows_of_an_array() -> None:
    layouts = Layouts(make_config())
    rows: list[Sequence[int]] = list(np.array([[1, 4, 6], [2, 2, 2]]))
    assert layouts.exact(rows).grids == ((1, 4, 6), (2, 2, 2))


def test_a_repeated_batch_is_the_same_object_and_cannot_be_written() -> None:
    layouts = Layouts(make_config(position_side=5, window_side=2))
    first = layouts.exact([(1, 4, 6)])
    assert layouts.exact([[1, 4, 6]]) is first
    for array in first.arrays:
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_caches_stay_under_their_bound() -> None:
    layouts = Layouts(make_config(), max_cache_bytes=40_000)
    for side in range(2, 80, 2):
        layouts.exact([(1, side, 4), (2, 4, side)])
    for cache in (layouts._frames, layouts._exact):
        assert 0 < cache.num_bytes <= 10_000


def test_the_least_recently_used_entry_goes_first() -> None:
    cache: BoundedCache[str, int] = BoundedCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    cache.put("a", 5, 2)
    assert (cache.get("a"), cache.num_bytes, len(cache)) == (5, 6, 2)
    cache.put("huge", 4, 11)
    assert cache.get("huge") is None
    assert cache.num_bytes == 6


def test_tensors_have_the_same_bytes_and_their_own_memory() -> None:
    arrays = Layouts(make_config(position_side=5, window_side=2)).exact([(2, 4, 6)]).arrays
    tensors = to_tensors(arrays)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert tensor is not None
        assert array is not None
        assert tensor.numpy().tobytes() == array.tobytes()
        assert tensor.dtype in (torch.int32, torch.float32)
        assert not np.shares_memory(tensor.numpy(), array)
    assert num_bytes(arrays) == sum(t.nbytes for t in tensors if t is not None)
