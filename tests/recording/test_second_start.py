"""What a second process need not find out again, shown by two runners that share a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.cache import Budget
from ostinato.recording.config import GraphConfig
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner
from ostinato.recording.served import Served
from ostinato.recording.store import Section, Store, machine_tag
from ostinato.recording.tape import TapeLane

ROWS = Axis("rows", top=32, rungs=(4, 8, 16, 32))


def start(folder: Path, fn: Callable[..., Any], **region: Any) -> tuple[Runner, Served]:
    runner = Runner(TapeLane(poison=True), Budget(1 << 26))
    config = GraphConfig(cache_dir=folder, min_hits=1)
    return runner, runner.serve(Region("again", fn, **region), config)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def reads_back(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def test_only_the_used_part_of_a_ladder_is_recorded_again(tmp_path: Path) -> None:
    grows = {0: {0: Grows(ROWS)}}
    runner, served = start(tmp_path, double, grows=grows)
    served.record((torch.ones(3, 2),), {})
    assert len(served.recordings.entries()) == 4
    for n in (5, 7):
        x = torch.randn(n, 2)
        assert torch.equal(served.call((x,), {}), x * 2)
    runner.close()

    runner, served = start(tmp_path, double, grows=grows)
    served.record((torch.ones(3, 2),), {})
    rungs = sorted(next(iter(e.rung.values())) for e in served.recordings.entries() if e.rung)
    assert rungs == [8, 32]
    x = torch.randn(12, 2)
    assert torch.equal(served.call((x,), {}), x * 2)
    runner.close()


def test_refusals_are_remembered_and_can_be_tried_again(tmp_path: Path) -> None:
    x = torch.ones(3)
    for turn in range(2):
        runner, served = start(tmp_path, reads_back)
        assert torch.equal(served.call((x,), {}), x * 3)
        route = served.counters.last()
        assert route is not None and "host-scalar" in route.reason
        assert ("earlier process" in route.reason) == (turn == 1)
        with pytest.raises(RecordingRefused, match="host-scalar"):
            served.record((x,), {})
        runner.close()


def test_changed_code_starts_afresh(tmp_path: Path) -> None:
    runner, served = start(tmp_path, reads_back)
    served.call((torch.ones(3),), {})
    runner.close()

    def mended(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum()

    runner, served = start(tmp_path, mended)
    x = torch.ones(3)
    assert torch.equal(served.call((x,), {}), x * 3)
    route = served.counters.last()
    assert route is not None and route.route == "exact"
    runner.close()


def test_times_and_broken_files(tmp_path: Path) -> None:
    device = torch.device("cpu")
    store = Store(tmp_path, device)
    Section(store, "a").keep_times("key", 12.5, 67.0)
    again = Store(tmp_path, device)
    assert Section(again, "a").times("key") == (12.5, 67.0)
    assert Section(again, "a").times("other") is None
    assert Section(again, "b").times("key") is None
    assert machine_tag(device) in str(store.path)
    store.path.write_text("{ not json")
    assert Store(tmp_path, device).get("a") == {}
    assert Section(None, "a").times("key") is None
