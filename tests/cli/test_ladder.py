"""``ostinato ladder``: sizes to rungs, padding, cost."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ostinato.cli import main as command
from ostinato.cli.ladder import best_rungs, make_plan, read_sizes
from ostinato.cli.wiring import tower_and_processing
from ostinato.errors import ConfigError

TOWER, PROCESSING = tower_and_processing("tiny-qwen3-vl")


def padded(traffic: dict[int, int], rungs: tuple[int, ...]) -> int:
    return sum((min(r for r in rungs if r >= s) - s) * n for s, n in traffic.items())


@given(
    st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=7),
    st.integers(1, 5),
)
def test_the_best_rungs_pad_least_of_all_choices(traffic: dict[int, int], num_rungs: int) -> None:
    count = min(num_rungs, len(traffic))
    choices = itertools.combinations(sorted(traffic), count)
    least = min(padded(traffic, c) for c in choices if c[-1] == max(traffic))
    rungs = best_rungs(traffic, num_rungs)
    assert len(rungs) <= count
    assert padded(traffic, rungs) == least


def test_a_plan_counts_hits_padding_and_what_is_too_large() -> None:
    plan = make_plan("p", (100, 200), {50: 2, 100: 1, 120: 1, 300: 4}, TOWER)
    assert (plan.hits, plan.num_direct, plan.num_recordings) == ((3, 1), 4, 4)
    assert plan.waste == (2 * 50 + 80) / (3 * 100 + 200)
    # two bytes for each value of the patches, and of 4 outputs of 64 for every fourth row
    assert plan.static_bytes == 2 * 2 * 300 * (1536 + 64)


def test_sizes_are_pixels_or_patches(tmp_path: Path) -> None:
    path = tmp_path / "sizes"
    path.write_text("480x640\n 480 X 640 # twice\n\n# nothing\n1024\n100x100\n")
    assert read_sizes(path, PROCESSING.image) == {1200: 2, 1024: 1, 256: 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no size"),
        ("4x4x4", "sizes:1: '4x4x4'; expected HxW"),
        ("100x100\n7", "sizes:2: 7 patches; expected a multiple of 4"),
        ("0x5", "expected HxW"),
        ("1x5000", "sizes:1: 1x5000: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sizes"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_sizes(path, PROCESSING.image)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "sizes"
    path.write_text("480x640\n" * 9 + "100x100\n3000x4000\n")
    result = CliRunner().invoke(command.app, ["ladder", "--sizes", str(path), "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["calls"], answer["distinct_sizes"]) == (11, 3)
    ladder, best, exact = answer["plans"]
    assert ladder["rungs"][-1] == 16384
    assert ladder["num_direct"] == best["num_direct"] == exact["num_direct"] == 1
    assert best["rungs"] == exact["rungs"] == [256, 1200]
    assert (best["hits"], best["waste"]) == ([1, 9], 0)
    text = CliRunner().invoke(command.app, ["ladder", "--sizes", str(path)]).stdout
    assert text.splitlines()[0] == "11 calls, 3 sizes of 256 to 47000 patches"
