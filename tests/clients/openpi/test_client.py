"""The robot's distribution against our server and by itself: bytes, deadlines, reconnection."""

from __future__ import annotations

import ast
import io
import socket
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image

import ostinato_robot as robot_side
from ostinato.serve.openpi import codec
from ostinato.serve.openpi.images import resize_with_pad
from ostinato_robot import CodecError, ConnectionLost, DeadlineMissed, RobotClient, ServerError
from tests.serve.openpi.observations import as_read, droid, picture, server
from tests.serve.openpi.stub import StubPolicy, actions_of
from tests.serve.openpi.test_codec import GOLDEN, REFUSED, VALUES, same

ROOT = Path(robot_side.__file__).parents[2]
WANTED = actions_of(as_read(), {})


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_both_codecs_write_and_read_the_same(value: Any) -> None:
    data = robot_side.packb(value)
    assert data == codec.packb(value)
    assert same(codec.unpackb(data), robot_side.unpackb(data))


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_golden_bytes(value: Any, text: str) -> None:
    assert robot_side.packb(value).hex() == text.replace(" ", "")


@pytest.mark.parametrize("data", [row[0] for row in REFUSED[:6]] + [b"\x80\x04.", b"\x92\x01"])
def test_objects_and_broken_messages_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        robot_side.unpackb(data)


@pytest.mark.parametrize(
    "value", [np.array([object()]), {1, 2}, 2**64, np.datetime64("2026-01-01")]
)
def test_what_has_no_encoding_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        robot_side.packb(value)


def test_images_are_resized_as_the_server_would() -> None:
    image = picture(3, (30, 41))
    small = robot_side.resize_with_pad(image, (12, 20))
    assert np.array_equal(small, resize_with_pad(image, (12, 20)))
    file = robot_side.jpeg(image, (12, 20), quality=95)
    decoded = np.asarray(Image.open(io.BytesIO(file)))
    assert decoded.shape == (12, 20, 3)
    assert np.abs(decoded.astype(int) - small).mean() < 25  # noise is the worst case of a JPEG
    with pytest.raises(ValueError, match=r"float64 \(2,\); expected uint8"):
        robot_side.resize_with_pad(np.zeros(2), (12, 20))


def test_an_observation_is_answered_raw_and_as_jpeg() -> None:
    service = StubPolicy()
    with server(service) as port, RobotClient(port=port, session_id="arm") as robot:
        assert robot.metadata["input"]["camera_hw"] == [12, 20]
        reply = robot.infer(droid())
        assert reply["actions"].tobytes() == WANTED.tobytes()
        assert reply["ostinato"]["session_id"] == "arm"
        file = robot_side.jpeg(picture(0, (24, 40)), (12, 20))
        robot.infer(droid(**{"observation/wrist_image_left": file}))
    assert np.array_equal(
        service.seen[1]["images"]["wrist"], np.asarray(Image.open(io.BytesIO(file)))
    )


def test_a_late_answer_is_never_that_of_a_newer_observation() -> None:
    service = StubPolicy()
    with server(service) as port, RobotClient(port=port, deadline_ms=5000) as robot:
        service.delays_s = [0.3, 0.0]
        began_s = time.monotonic()
        with pytest.raises(DeadlineMissed):
            robot.infer(droid(prompt="late"), deadline_ms=50)
        assert time.monotonic() - began_s < 0.25
        reply = robot.infer(droid())
        assert reply["actions"].tobytes() == WANTED.tobytes()


class OldServer:
    """Speaks openpi and knows nothing of our wishes: it answers late, and in order."""

    def __init__(self, delays_s: list[float]) -> None:
        self.delays_s = delays_s

    def __call__(self, connection: Any) -> None:
        connection.send(codec.packb({}))
        for number, message in enumerate(connection):
            codec.unpackb(message)
            time.sleep(self.delays_s[number])
            connection.send(codec.packb({"actions": np.full((1, 1), number)}))


def test_late_answers_of_a_server_without_deadlines_are_thrown_away() -> None:
    from websockets.sync.server import serve

    with serve(OldServer([0.2, 0.0, 0.0]), "127.0.0.1", 0, compression=None) as old:
        thread = threading.Thread(target=old.serve_forever)
        thread.start()
        port = old.socket.getsockname()[1]
        with RobotClient(port=port) as robot:
            assert robot.metadata == {}
            with pytest.raises(DeadlineMissed):
                robot.infer({}, deadline_ms=30)
            assert robot.infer({})["actions"].item() == 1
            assert robot.infer({})["actions"].item() == 2
        old.shutdown()
        thread.join(10)


def test_after_an_error_the_next_call_connects_again() -> None:
    with server(StubPolicy()) as port, RobotClient(port=port) as robot:
        with pytest.raises(ServerError, match="the prompt is int 3; expected text"):
            robot.infer(droid(prompt=3))
        assert robot.infer(droid())["actions"].tobytes() == WANTED.tobytes()


def test_a_server_that_comes_back_is_found_again() -> None:
    with server(StubPolicy()) as port:
        robot = RobotClient(port=port, connect_timeout_s=0.5)
        robot.infer(droid())
    with pytest.raises(ConnectionLost):
        robot.infer(droid())
    with pytest.raises(ConnectionLost, match="cannot be reached"):
        robot.infer(droid())
    robot.close()


def test_it_waits_for_a_server_that_is_not_there_yet() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(ConnectionLost, match="cannot be reached"):
        RobotClient(port=port, connect_timeout_s=0.6)
    assert 0.3 < time.monotonic() - began_s < 5


def test_the_key_is_sent() -> None:
    with server(StubPolicy(), api_key="k") as port:
        with RobotClient(port=port, api_key="k") as robot:
            assert robot.infer(droid())["actions"].shape == (4, 8)
        with pytest.raises(ConnectionLost, match="401"):
            RobotClient(port=port)


def test_the_distribution_is_small_old_enough_and_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.8"
    allowed = {"msgpack", "numpy", "pillow", "websockets"}
    assert {text.partition(">")[0] for text in project["dependencies"]} == allowed
    imported = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    outside = imported - set(sys.stdlib_module_names) - {"ostinato_robot"}
    assert outside == {"msgpack", "numpy", "PIL", "websockets"}
