"""The arithmetic that measured times are scaled by."""

from __future__ import annotations

import pytest

from ostinato.vision.work import Work
from tests.vision.encoders import tower_of


def test_operations_of_a_tower() -> None:
    tower = tower_of("tiny-qwen3-vl")
    config = tower.config
    work = Work.of(tower, config)
    blocks = 2 * config.depth * (4 * config.width**2 + 2 * config.width * config.mlp_width)
    assert work.per_row == blocks
    assert work.per_pair == 4 * config.width * config.depth


def test_windows_are_no_pairs() -> None:
    tower = tower_of("tiny-qwen2.5-vl")
    num_full = len(tower.config.full_attention_blocks)
    assert 0 < num_full < tower.config.depth
    assert Work.of(tower, tower.config).per_pair == 4 * tower.config.width * num_full


def test_share() -> None:
    work = Work(per_row=100.0, per_pair=1.0)
    assert work.share(100, 10_000, 10_000) == 1.0
    assert work.share(100, 0, 10_000) == 0.5
    assert work.share(100, 2_500, 10_000) == pytest.approx(12_500 / 20_000)
