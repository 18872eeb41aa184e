"""``ostinato serve`` as a user types it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from typer.testing import CliRunner

from ostinato.cli import main as command
from ostinato.cli.config import Settings
from tests.cli.encoders import FLAGS, MODEL

runner = CliRunner()


def test_a_command_for_sglang_answers_for_photograph_and_video() -> None:
    arguments = ["serve", "--model-path", MODEL, "--encoder-only", "--tp-size", "1", "--port", "0"]
    result = runner.invoke(command.app, [*arguments, "--device", "cpu", "--once", *FLAGS])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "--tp-size 1 has no effect: one process serves one device"
    assert lines[1].endswith(f": {MODEL} on cpu")
    assert lines[2].startswith("photograph.jpg")
    assert lines[4].startswith("a video of photograph.jpg")
    assert "-> 98 x 64" in lines[4]


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    seen: dict[str, Any] = {}

    def load(model: str, settings: Settings, **fields: Any) -> None:
        seen.update(model=model, settings=settings, **fields)

    def run(service: None, server: Any, **fields: Any) -> int:
        seen.update(fields)
        return 7

    monkeypatch.setattr("ostinato.cli.wiring.load_service", load)
    monkeypatch.setattr("ostinato.cli.run_server.run_server", run)
    text = (
        "serve --model m --device cpu --host 0.0.0.0 --port 8000 --api-key k --dtype half "
        "--served-model-name name --disable-cuda-graph --top-patches 512 --cache-bytes 9 "
        "--max-batch 3 --max-queued-requests 5 --max-items 2 --max-body-bytes 77 --workers 4 "
        "--allow-hosts A.example,b.example:81 --skip-server-warmup --max-image-pixels 99 "
        "--numerics reference --budget-bytes 1000 --quantization fp8"
    )
    result = runner.invoke(command.app, [*text.split(), "--allow-files", str(tmp_path)])
    assert result.exit_code == 7, result.output
    settings = seen["settings"]
    server, encoder = settings.server, settings.encoder
    assert (server.host, server.port, server.api_key) == ("0.0.0.0", 8000, "k")
    assert (server.max_batch, server.max_queued, server.max_items) == (3, 5, 2)
    assert server.max_body_bytes == 77
    assert server.media.directory == tmp_path
    assert server.media.hosts == {"a.example", "b.example:81"}
    assert (settings.served_name, settings.cache_bytes) == ("name", 9)
    assert not settings.is_recording_on
    assert (encoder.dtype, encoder.top_patches, encoder.num_workers) == ("float16", 512, 4)
    assert (encoder.numerics, encoder.budget_bytes, encoder.max_image_pixels) == (
        "reference",
        1000,
        99,
    )
    assert encoder.quantization == "fp8"
    assert (seen["is_greeting"], seen["device"]) == (False, "cpu")


def test_an_address_that_is_taken_ends_the_command_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = runner.invoke(command.app, ["serve", "--model", MODEL, "--port", str(port)])
    assert result.exit_code != 0
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in str(result.exception)
