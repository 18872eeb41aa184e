"""Line 12, pieces: one key, one ledger check, one gate, and direct calls between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ostinato
from ostinato import state
from ostinato.errors import RecordingRefused
from ostinato.recording.pieces import direct
from tests.mutations import assert_fails_under
from tests.recording.serving import T, check_calls, content, graphed, rand


def routed(x: T, factor: float) -> T:
    """Reads a value, which only a direct call may."""
    return x * (float(x.abs().max()) + factor)


def fn(x: T) -> T:
    y = torch.relu(x + 1)
    y = direct(routed, y, 0.5)
    z = y.t() * 2
    return direct(routed, z, 2.0) - 1


def check_pieces() -> None:
    served = check_calls(fn, [(rand(i, 3, 2 + i % 2),) for i in range(8)], recorded=1.0)
    assert [e.recorded.num_pieces for e in served.recordings()] == [3, 3]
    assert served.stats().num_recorded == 2


def test_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("pieces.no_split", check_pieces, monkeypatch)


def test_the_direct_calls_run_in_no_activity_and_a_graphed_inside_them_is_served() -> None:
    inner = graphed(lambda x: x * 3)
    seen: list[bool] = []

    def middle(x: T) -> T:
        seen.append(state.is_active())
        return inner(x)  # type: ignore[no-any-return]

    served = graphed(lambda x: direct(middle, x + 1) - 1)
    for i in range(3):
        x = rand(i, 3)
        assert content(served(x)) == content((x + 1) * 3 - 1)
    assert content(served(rand(4, 3))) == content((rand(4, 3) + 1) * 3 - 1)


def check_results_that_change() -> None:
    sizes = [3]

    def resize(x: T) -> T:
        return x[: sizes[0]]

    served = graphed(lambda x: direct(lambda y: y[: len(y) // 2].clone(), x * 2) + 1)
    assert content(served(rand(0, 4))) == content(rand(0, 4)[:2] * 2 + 1)

    changing = graphed(lambda x: direct(resize, x * 2).sum())
    changing(rand(0, 4))
    sizes[0] = 2
    assert content(changing(rand(1, 4))) == content((rand(1, 4) * 2)[:2].sum())


def test_results_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under("ledger.nothing_changes", check_results_that_change, monkeypatch)


def test_weights_of_a_direct_call_are_in_the_ledger() -> None:
    layer = torch.nn.Linear(3, 3).requires_grad_(False)
    served = graphed(lambda x: direct(layer, x * 2) + 1)
    x = rand(0, 2, 3)
    for _ in range(3):
        with torch.no_grad():
            assert content(served(x)) == content(layer(x * 2) + 1)
        layer.weight = torch.nn.Parameter(torch.randn(3, 3), requires_grad=False)


def test_a_result_of_another_shape_stops_the_replay_loudly(tmp_path: Path) -> None:
    """The ledger cannot see a file or a clock: such a change is an error, never a wrong answer."""
    file = tmp_path / "length"
    file.write_text("4")

    def read(x: T) -> T:
        return x[: int(file.read_text())]

    served = graphed(lambda x: direct(read, x * 2).sum())
    with pytest.raises(RecordingRefused, match="piece-result"), ostinato.route("exact"):
        for i in range(8):
            served(rand(i, 4))
            if i == 5:
                file.write_text("2")
