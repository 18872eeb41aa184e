"""``ostinato serve`` for a policy: its flags, its port, its greeting."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ostinato.cli import main as command
from ostinato.cli.config import resolve_robots
from ostinato.cli.policy_greeting import greet_policy
from ostinato.errors import ConfigError
from ostinato.serve.openpi.actions import ActionBounds
from ostinato.serve.openpi.metadata import check_settings
from ostinato.serve.settings import ServerSettings
from tests.serve.openpi.observations import server
from tests.serve.openpi.stub import StubPolicy

runner = CliRunner()
MODEL = "tiny-flux3-action"


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    seen: dict[str, Any] = {}

    def load(model: str, settings: Any, **fields: Any) -> StubPolicy:
        seen.update(fields, model=model, settings=settings)
        return StubPolicy()

    def build(service: Any, settings: Any, robots: Any) -> str:
        seen.update(robots=robots)
        return "app"

    def run(app: Any, settings: Any, **fields: Any) -> int:
        seen.update(fields, app=app)
        return 7

    monkeypatch.setattr("ostinato.cli.policy_wiring.load_policy_service", load)
    monkeypatch.setattr("ostinato.serve.openpi.app.build_policy_app", build)
    monkeypatch.setattr("ostinato.cli.run_server.run_app", run)
    text = (
        f"serve --model {MODEL} --device cpu --rename top=left --rename cam=wrist "
        "--resize-cameras --action-bounds -1:1 --clamp-actions --keep-warm 3 "
        f"--variant sd --record {tmp_path} --record-bytes 99 --max-body-bytes 77 "
        "--max-queued-requests 5"
    )
    result = runner.invoke(command.app, text.split())
    assert result.exit_code == 7, result.output
    server, robots = seen["settings"].server, seen["robots"]
    assert (seen["variant"], seen["device"]) == ("sd", "cpu")
    assert (server.port, server.max_body_bytes, server.max_queued) == (8000, 77, 5)
    assert robots.intake.rename == {"top": "left", "cam": "wrist"}
    assert robots.intake.is_resized
    assert robots.bounds == ActionBounds((-1.0,), (1.0,), is_clamped=True)
    assert (robots.keep_warm_s, robots.record, robots.record_bytes) == (3.0, tmp_path, 99)
    assert (seen["app"], seen["greeting"]) == ("app", greet_policy)


@pytest.mark.parametrize(
    ("model", "flag"),
    [
        (MODEL, "--encoder-only"),
        (MODEL, "--top-patches=3"),
        ("tiny-qwen3-vl", "--resize-cameras"),
        ("tiny-qwen3-vl", "--keep-warm=3"),
    ],
)
def test_a_flag_of_the_other_kind_is_refused(model: str, flag: str) -> None:
    result = runner.invoke(command.app, ["serve", "--model", model, flag])
    assert isinstance(result.exception, ConfigError)
    assert f"{flag.partition('=')[0]} was given; expected no such flag for a" in str(
        result.exception
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rename": ["a"]}, "rename 'a': expected SENT=DECLARED"),
        ({"rename": ["=a"]}, "expected SENT=DECLARED"),
        ({"keep_warm_s": -1}, "keep-warm -1: expected 0"),
        ({"record_bytes": 0}, "record-bytes 0"),
        ({"clamp_actions": True}, "clamp-actions needs action-bounds"),
        ({"action_bounds": "1"}, "expected LOW:HIGH"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve_robots(**fields)


def test_settings_that_do_not_fit_the_policy() -> None:
    with pytest.raises(ConfigError, match=r"rename a=b: 'b' is not declared; expected .*left"):
        check_settings(StubPolicy(), resolve_robots(rename=["a=b"]))
    with pytest.raises(ConfigError, match="2 entries; expected 1 or 8"):
        check_settings(StubPolicy(), resolve_robots(action_bounds="0:1,0:1"))


def test_the_greeting_is_an_observation_over_openpi() -> None:
    lines: list[str] = []
    service = StubPolicy()
    with server(service, api_key="k") as port:
        greet_policy(ServerSettings(port=port, api_key="k"), lines.append)
    (line,) = lines
    assert line.startswith("wrist + left + right -> 4 x 8 actions in ")
    assert line.endswith("(5.0 in the policy)")
    assert service.options == [{"enable_cuda_graph": False}]
