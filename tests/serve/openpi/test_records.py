"""The ring of ``--record``: what is in it, how large it gets, that nothing waits for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.errors import ConfigError
from ostinato.serve.openpi.codec import packb, unpackb
from ostinato.serve.openpi.records import (
    Exchange,
    Recorder,
    list_records,
    read_record,
    read_records,
)
from ostinato.serve.openpi.settings import RobotSettings
from tests.serve.openpi.observations import droid, server
from tests.serve.openpi.stub import StubPolicy
from tests.serve.openpi.test_sockets import ask, dial


def exchange(number: int, size: int = 0) -> Exchange:
    return Exchange("openpi", "application/msgpack", b"\0" * size, b"r", {"infer": 1.0}, number)


def write(directory: Path, count: int, size: int, max_bytes: int, **fields: Any) -> None:
    recorder = Recorder(directory, max_bytes, server={"model": "m"}, **fields)
    recorder.start()
    for number in range(count):
        recorder.put(exchange(number, size))
    recorder.stop()


def test_what_was_written_is_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "new", 3, 10, 10**6)
    found = list(read_records(tmp_path / "new"))
    assert [one.when_s for one in found] == [0, 1, 2]
    assert found[0].request == b"\0" * 10 and found[0].server == {"model": "m"}
    assert not list((tmp_path / "new").glob("*.partial"))


def test_the_oldest_go_when_the_ring_is_full_and_a_later_server_goes_on(tmp_path: Path) -> None:
    write(tmp_path, 5, 1000, 3500)
    assert [one.when_s for one in read_records(tmp_path)] == [2, 3, 4]
    write(tmp_path, 1, 1000, 2500)
    assert [path.stem for path in list_records(tmp_path)] == ["0000000004", "0000000005"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2500


def test_a_slow_disk_costs_records_and_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, dropped = threading.Event(), []
    original = Recorder._write

    def slow(self: Recorder, one: Exchange) -> None:
        may_write.wait(10)
        original(self, one)

    monkeypatch.setattr(Recorder, "_write", slow)
    recorder = Recorder(tmp_path, 10**6, server={}, on_drop=lambda: dropped.append(1))
    recorder.start()
    for number in range(100):
        recorder.put(exchange(number))
    assert 30 <= len(dropped) <= 36  # 64 wait, one is being written
    may_write.set()
    recorder.stop()
    assert len(list_records(tmp_path)) == 100 - len(dropped)


def test_a_full_disk_is_counted_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError("full")))
    write(tmp_path, 2, 1, 100, on_drop=lambda: dropped.append(1))
    assert len(dropped) == 2


def test_files_that_are_no_exchanges_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a directory with \*.exchange files"):
        list(read_records(tmp_path))
    path = tmp_path / "0000000001.exchange"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=r"0000000001\.exchange: .*bytes follow"):
        read_record(path)
    path.write_bytes(packb({"format": 2}))
    with pytest.raises(ConfigError, match="expected format 1 with"):
        read_record(path)
    with pytest.raises(ConfigError, match="record"):
        Recorder(path, 1, server={})


def test_a_server_records_requests_and_replies_as_they_went(tmp_path: Path) -> None:
    robots = RobotSettings(record=tmp_path)
    with server(StubPolicy(), robots) as port, dial(port) as robot:
        robot.recv()
        reply = ask(robot, droid())
        ask(robot, droid(endpoint="infer"))
        ask(robot, droid(large=b"x" * 2**17))
        ask(robot, droid(prompt=3))
    openpi, roboarena, large = read_records(tmp_path)
    assert large.request == packb(droid(large=b"x" * 2**17))
    assert openpi.request == packb(droid())
    assert unpackb(openpi.reply)["actions"].tobytes() == reply["actions"].tobytes()
    assert isinstance(unpackb(roboarena.reply), np.ndarray)
    assert openpi.stage_ms["infer"] == 5.0
    assert openpi.server["intake"] == {"rename": {}, "is_resized": False}
