"""Recorded traffic runs again: the same bytes in every dialect, and differences are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ostinato.cli import main as command
from ostinato.cli.act_replay import recorded_model, replay
from ostinato.errors import ConfigError
from ostinato.serve.openpi.actions import ActionBounds
from ostinato.serve.openpi.codec import packb
from ostinato.serve.openpi.intake import IntakeSettings
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.service import Reply
from tests.serve.openpi.observations import droid, picture, plain, server
from tests.serve.openpi.stub import StubPolicy
from tests.serve.openpi.test_routes import JSON, MSGPACK, in_json, post
from tests.serve.openpi.test_sockets import ask, dial


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """One exchange of each dialect and form, by a server that renames, resizes and clamps."""
    robots = RobotSettings(
        IntakeSettings({"top": "left"}, is_resized=True),
        ActionBounds((-9.0,), (22.0,), is_clamped=True),
        record=tmp_path,
    )
    renamed = plain(seed=3)
    renamed["images"]["top"] = picture(7, (24, 40))
    del renamed["images"]["left"]
    with server(StubPolicy(), robots) as port, dial(port) as robot:
        robot.recv()
        ask(robot, droid())
        ask(robot, renamed)
        ask(robot, droid(session_id="s"))
        post(port, in_json(), JSON)
        post(port, in_json(runtime={"response_format": "raw"}), JSON)
        post(port, in_json(), {**JSON, "Accept": "application/msgpack"})
        post(port, packb(plain()), MSGPACK)
    return tmp_path


def test_every_dialect_replays_to_the_same_bytes(recorded: Path) -> None:
    report = replay(recorded, StubPolicy())
    assert [one.error for one in report.compared] == [None] * 7
    assert report.is_good
    summary = report.summary()
    assert (summary["num_bit_exact"], summary["num_different"]) == (7, 0)
    assert summary["recorded_ms"] == {"p50": 5.0, "p99": 5.0} == summary["now_ms"]
    assert recorded_model(recorded) == "stub"


class Other(StubPolicy):
    """One number of one answer differs in its last bit; another answer fails."""

    def serve(self, requests: Any) -> Any:
        (reply,) = super().serve(requests)
        if len(self.seen) == 4:
            return [RuntimeError("broken")]
        assert isinstance(reply, Reply)
        if len(self.seen) == 2:
            actions = reply.outputs["actions"]
            actions[0, 0] = np.nextafter(actions[0, 0], np.float32(99), dtype=np.float32)
        return [reply]


def test_differences_and_errors_are_named(recorded: Path) -> None:
    report = replay(recorded, Other())
    assert [one.place for one in report.compared if not one.is_same] == [1, 3]
    assert 0 < report.compared[1].difference < 1e-5
    assert report.compared[3].error == "broken"
    assert not report.is_good


def test_nothing_to_replay_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a directory"):
        replay(tmp_path, StubPolicy())


def test_the_report_in_words(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.cli.policy_wiring.load_policy_service", lambda *_, **__: Other())
    arguments = ["act", "--replay", str(recorded), "--model", "m", "--device", "cpu"]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("exchange 1: differs by 1.9")
    assert lines[1] == "exchange 3: broken"
    assert lines[2].startswith("7 exchanges, 5 bit-exact; largest difference 1.9")
    assert lines[3].split() == ["recorded", "P50", "5.0", "ms", "P99", "5.0", "ms"]
