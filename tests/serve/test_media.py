"""What a URL of a request may make the server read, and what not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ostinato.errors import InputError
from ostinato.serve.media import read_url
from ostinato.serve.settings import MediaPolicy

CLOSED = MediaPolicy()


@pytest.mark.parametrize(
    ("url", "content"),
    [
        ("data:image/png;base64,AAEC", b"\0\1\2"),
        ("DATA:;base64,AA EC\n", b"\0\1\2"),
        ("data:,a%20b", b"a b"),
        ("data:video/jpeg;base64,AAEC,AwQF", [b"\0\1\2", b"\3\4\5"]),
    ],
)
def test_data_urls(url: str, content: object) -> None:
    assert read_url(url, CLOSED) == content


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("data:image/png;base64", "data-url"),
        ("data:image/png;base64,A", "data-url"),
        ("data:image/png;base64,####", "data-url"),
        ("data:image/png;base64,\u00e9", "data-url"),
        ("data:image/png;base64,", "empty"),
        ("/etc/passwd", "url"),
        ("ftp://host/x", "url"),
        ("http://[::1", "url"),
        ("http://a:99999/", "url"),
        ("file:///etc/passwd", "no-files"),
        ("http://localhost/x", "no-network"),
        ("https://example.org/x.png", "no-network"),
    ],
)
def test_by_default_nothing_but_data_urls_is_read(
    url: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_connection(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr("socket.getaddrinfo", no_connection)
    with pytest.raises(InputError, match=rf"^\[{rule}\] "):
        read_url(url, CLOSED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a b.png").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(inside / "pipe")
    return inside


def test_files_below_the_directory_are_read(folder: Path) -> None:
    policy = MediaPolicy(directory=folder)
    assert read_url(f"file://{folder}/a%20b.png", policy) == b"picture"
    assert read_url(f"file://localhost{folder}/a%20b.png", policy) == b"picture"


@pytest.mark.parametrize(
    ("tail", "rule"),
    [
        ("/../secret", "no-files"),
        ("/%2e%2e/secret", "no-files"),
        ("/link", "no-files"),
        ("/missing", "no-files"),
        ("/a%00b", "no-files"),
        ("/pipe", "unreadable-file"),
        ("/.", "unreadable-file"),
    ],
)
def test_nothing_outside_and_no_pipe_is_read(folder: Path, tail: str, rule: str) -> None:
    with pytest.raises(InputError, match=rf"^\[{rule}\] "):
        read_url(f"file://{folder}{tail}", MediaPolicy(directory=folder))


def test_a_large_file_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="more than 3 bytes"):
        read_url(f"file://{folder}/a%20b.png", MediaPolicy(directory=folder, max_bytes=3))


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/picture?a=1")
        else:
            self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_allowed_host_is_fetched_from_without_redirects(address: str) -> None:
    policy = MediaPolicy(hosts=frozenset({address}))
    assert read_url(f"http://{address}/picture?a=1", policy) == b"/picture?a=1"
    with pytest.raises(InputError, match="answered 302, expected 200"):
        read_url(f"http://{address}/moved", policy)
    with pytest.raises(InputError, match="more than 3 bytes"):
        read_url(f"http://{address}/long", MediaPolicy(hosts=frozenset({address}), max_bytes=3))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",  # another port than the allowed one
        "http://{address}@evil.example/x",
        "http://evil.example#{address}",
        "http://evil.example/{address}",
    ],
)
def test_only_the_named_host_and_port_are_allowed(address: str, url: str) -> None:
    with pytest.raises(InputError, match=r"^\[no-network\] "):
        read_url(url.format(address=address), MediaPolicy(hosts=frozenset({address})))


def test_what_is_compared_is_what_is_connected_to(address: str) -> None:
    policy = MediaPolicy(hosts=frozenset({address}))
    assert read_url(f"http://evil.example\\@{address}/x", policy) == b"/x"
