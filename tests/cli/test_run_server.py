"""A real server on a free port of the loopback: greets itself and leaves."""

from __future__ import annotations

import http.client
import threading

import pytest

from ostinato.cli.config import resolve_settings
from ostinato.cli.run_server import run_server
from ostinato.cli.wiring import load_service
from ostinato.serve.settings import ServerSettings
from tests.cli.fake_graph import FakeGraph
from tests.serve.stub import StubService


def test_once_prints_how_each_call_was_served() -> None:
    settings = resolve_settings(port=0, api_key="k", environ={})
    service = load_service("tiny-photograph", settings, device="cpu", graph=FakeGraph())
    lines: list[str] = []
    assert run_server(service, settings.server, is_once=True, echo=lines.append) == 0
    words = [line.split("tokens")[1].split() for line in lines]
    assert [line[0] for line in words] == ["exact", "exact", "direct"]
    assert lines[0].split()[:2] == ["photograph.jpg", "460"]
    assert lines[2].endswith("(new shape)")
    assert "photograph.jpg, half size" in lines[2]
    assert "  110 tokens" in lines[2]


def test_a_failed_warm_up_ends_the_server_with_its_reason() -> None:
    service = StubService()
    service.warm_up_error = RuntimeError("no weights")
    lines: list[str] = []
    settings = ServerSettings(port=0)
    assert run_server(service, settings, is_once=False, echo=lines.append) == 1
    assert lines == ["error: the warm-up ended as failed: no weights"]


def test_a_refused_greeting_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, object]:
        raise RuntimeError("the server answered 500: x")

    monkeypatch.setattr("ostinato.cli.run_server.post_image", refuse)
    lines: list[str] = []
    assert run_server(StubService(), ServerSettings(port=0), is_once=True, echo=lines.append) == 1
    assert lines == ["error: the server answered 500: x"]


def test_without_once_it_keeps_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greeting's last line comes while the server still answers."""
    import uvicorn

    servers: list[uvicorn.Server] = []
    original = uvicorn.Server.__init__

    def remember(self: uvicorn.Server, config: uvicorn.Config) -> None:
        original(self, config)
        servers.append(self)

    monkeypatch.setattr(uvicorn.Server, "__init__", remember)
    statuses: list[int] = []

    def stop_it(address: str) -> None:
        host, port = address.rpartition("/")[2].split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/readyz")
        statuses.append(connection.getresponse().status)
        connection.close()
        servers[0].should_exit = True

    def echo(line: str) -> None:
        if line.startswith("serving stub on http://127.0.0.1:"):
            threading.Thread(target=stop_it, args=(line.rsplit(maxsplit=1)[-1],)).start()

    assert run_server(StubService(), ServerSettings(port=0), is_once=False, echo=echo) == 0
    assert statuses == [200]
