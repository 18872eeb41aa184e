"""A real server on a free port of the loopback: greets itself and leaves."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import uvicorn

import ostinato
from ostinato.cli.greeting import greet
from ostinato.cli.run_server import greet_unless_busy, run_server
from ostinato.cli.wiring import load_service
from ostinato.serve.settings import ServerSettings
from tests.cli.encoders import MODEL, settings
from tests.serve.stub import StubService


def test_once_prints_how_photograph_and_video_were_served() -> None:
    chosen = settings(api_key="k")
    service = load_service(MODEL, chosen, device="cpu")
    lines: list[str] = []
    assert run_server(service, chosen.server, is_once=True, echo=lines.append) == 0
    assert [line[:26].strip() for line in lines] == [
        "photograph.jpg",
        "photograph.jpg, half size",
        "a video of photograph.jpg",
    ]
    grids = [line[26:].partition("ms")[0].split("patches")[0].strip() for line in lines]
    assert grids == ["1 x 24 x 20", "1 x 18 x 16", "2 x 14 x 14"]
    assert "-> 120 x 64  direct" in lines[0]
    assert "-> 98 x 64  direct" in lines[2]  # above the 256 patches that this test records
    assert lines[0].endswith("(larger than the largest rung)")


def test_without_a_greeting_nothing_is_asked() -> None:
    service, lines = StubService(), []
    settings = ServerSettings(port=0)
    run_server(service, settings, is_once=True, is_greeting=False, echo=lines.append)
    assert (service.batches, lines) == ([], [])


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

    monkeypatch.setattr("ostinato.cli.greeting.post_pooling", refuse)
    lines: list[str] = []
    assert run_server(StubService(), ServerSettings(port=0), is_once=True, echo=lines.append) == 1
    assert lines == ["error: the server answered 500: x"]


def test_a_greeting_that_finds_no_place_leaves_the_server_to_its_clients() -> None:
    """Clients may come as soon as the server is ready, and fill its queue."""

    class Full(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(503)

        def log_message(self, *_: object) -> None: ...

    lines: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Full) as full:
        thread = threading.Thread(target=full.serve_forever)
        thread.start()
        greet_unless_busy(greet, ServerSettings(port=full.server_port), lines.append)
        full.shutdown()
        thread.join()
    assert lines == ["clients are being served already: the greeting ends here"]


def test_a_server_that_is_stopped_in_its_warm_up_has_not_failed(
    servers: list[uvicorn.Server],
) -> None:
    service = StubService()
    service.may_warm_up.clear()

    def stop_it() -> None:
        while not (servers and servers[0].started):
            time.sleep(0.01)
        servers[0].should_exit = True
        time.sleep(0.2)
        service.may_warm_up.set()

    thread = threading.Thread(target=stop_it)
    thread.start()
    lines: list[str] = []
    assert run_server(service, ServerSettings(port=0), is_once=False, echo=lines.append) == 0
    thread.join()
    assert lines == []


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[uvicorn.Server]:
    """Those that a test starts."""
    made: list[uvicorn.Server] = []
    original = uvicorn.Server.__init__

    def remember(self: uvicorn.Server, config: uvicorn.Config) -> None:
        original(self, config)
        made.append(self)

    monkeypatch.setattr(uvicorn.Server, "__init__", remember)
    return made


def test_without_once_it_keeps_serving(servers: list[uvicorn.Server]) -> None:
    """The last line comes while the server still answers."""
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

    settings = ServerSettings(port=0)
    assert run_server(StubService(), settings, is_once=False, is_greeting=False, echo=echo) == 0
    assert statuses == [200]


def test_replies_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections inherit TCP_NODELAY: without it a reply waits 40 ms for an acknowledgement."""
    nodelay: list[int] = []

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        sockets[0].listen()
        with socket.create_connection(sockets[0].getsockname()), sockets[0].accept()[0] as accepted:
            nodelay.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        self.should_exit = True

    monkeypatch.setattr(uvicorn.Server, "run", run)
    run_server(StubService(), ServerSettings(port=0), is_once=True, echo=lambda line: None)
    assert nodelay == [1]


def test_the_greetings_answers_are_those_of_encode(recorded: ostinato.Encoder) -> None:
    """The video that the greeting sends is served like the same file handed to the library."""
    from ostinato.assets.photograph import clip_bytes

    (encoded,) = recorded.encode(videos=[clip_bytes()])
    assert (encoded.grid_thw, tuple(encoded.embeddings.shape)) == ((2, 14, 14), (98, 64))
