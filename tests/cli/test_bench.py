"""``ostinato bench policy``: JSON or a table, a package on request, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ostinato
from ostinato.bench import policy as measuring
from ostinato.cli import bench_policy as bench
from ostinato.cli import main

TINY = ["bench", "policy", "--model", "tiny-flux3-action", "--device", "cpu"]
ROW = {"median_ms": 2.0, "p95_ms": 3.0, "p99_ms": 4.0, "num_calls": 5}
FOUND: dict[str, Any] = {
    "variant": "sd",
    "device": "cpu",
    "total": {"direct": ROW, "recorded": ROW | {"median_ms": 1.0}, "route": {"denoise": "exact"}},
    "ready": {"seconds": 1.5, "held_mib": 12.0},
    "exactness": [{"equal_bytes": True}, {"equal_bytes": True}],
}


def run(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], *arguments: str) -> Any:
    seen: list[measuring.Settings] = []

    def measure(settings: measuring.Settings, keep: Any) -> dict[str, Any]:
        seen.append(settings)
        keep(found)
        return found

    monkeypatch.setattr(measuring, "measure", measure)
    return CliRunner().invoke(main.app, [*TINY, *arguments]), seen


def test_flags_become_settings_and_findings_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    flags = ["--variant", "base", "--repeats", "7", "--seconds", "9", "--compile-mode", "none"]
    result, (settings,) = run(monkeypatch, FOUND, *flags, "--json", "--out", str(out))
    assert result.exit_code == 0 and json.loads(result.stdout) == FOUND == json.loads(
        out.read_text()
    )
    assert (settings.variant, settings.num_calls, settings.seconds) == ("base", 7, 9.0)
    assert settings.compile_mode is None and settings.model == "tiny-flux3-action"


def test_the_table_names_every_peer() -> None:
    text = bench.as_text(FOUND | {"errors": {"idle": {"error": "ValueError('x')"}}})
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["direct", "recorded"]
    assert "recorded and gated in 1.5 s; holds 12.0 MiB" in text
    assert "2 of 2 recorded answers have equal bytes" in text
    assert "idle FAILED: ValueError('x')" in text


@pytest.mark.parametrize(
    "wrong",
    [{"exactness": [{"equal_bytes": False}]}, {"errors": {"idle": {"error": "x"}}}],
)
def test_what_differs_or_fails_is_exit_status_1(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, FOUND | wrong)[0].exit_code == 1


def test_a_package_is_written_instead(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.app, [*TINY, "--variant", "base", "--write", str(tmp_path)])
    assert result.exit_code == 0, result.output
    policy = ostinato.load_policy(tmp_path, device="cpu", enable_cuda_graph=False)
    assert policy.config.num_inference_steps == 4
