"""Observations as robots send them, and servers to send them to."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from PIL import Image

from ostinato.cli.run_server import uvicorn_config, wait_until_listening
from ostinato.serve.openpi.app import build_policy_app
from ostinato.serve.openpi.contract import PolicyService
from ostinato.serve.openpi.settings import RobotSettings
from ostinato.serve.settings import ServerSettings
from tests.serve.openpi.stub import HW, StubPolicy


def picture(seed: int, hw: tuple[int, int] = HW) -> np.ndarray:
    """(H, W, 3) uint8 of seeded noise."""
    return np.random.default_rng(seed).integers(0, 256, (*hw, 3), np.uint8)


def droid(hw: tuple[int, int] = HW, **fields: Any) -> dict[str, Any]:
    """Three cameras in DROID's spelling."""
    return {
        "observation/exterior_image_1_left": picture(1, hw),
        "observation/exterior_image_2_left": picture(2, hw),
        "observation/wrist_image_left": picture(0, hw),
        "observation/joint_position": np.linspace(-1, 1, 7),
        "observation/gripper_position": np.array([0.5]),
        "prompt": "pick up the cup",
        **fields,
    }


def plain(hw: tuple[int, int] = HW, **fields: Any) -> dict[str, Any]:
    """The same observation in the policy's own spelling."""
    return {
        "images": {"wrist": picture(0, hw), "left": picture(1, hw), "right": picture(2, hw)},
        "state": np.append(np.linspace(-1, 1, 7), 0.5),
        "prompt": "pick up the cup",
        **fields,
    }


def as_read(hw: tuple[int, int] = HW) -> dict[str, Any]:
    """What the policy sees of both."""
    observation = plain(hw)
    return {**observation, "state": observation["state"].astype(np.float32)}


def encoded(image: np.ndarray, kind: str) -> bytes:
    target = io.BytesIO()
    Image.fromarray(image).save(target, kind)
    return target.getvalue()


@contextmanager
def server(
    service: PolicyService, robots: RobotSettings | None = None, **settings: Any
) -> Iterator[int]:
    """A real server on a free port of the loopback, in a thread of this process."""
    chosen = ServerSettings(port=0, **settings)
    app = build_policy_app(service, chosen, robots or RobotSettings())
    config = uvicorn_config(app, chosen)
    listener = config.bind_socket()
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until_listening(running)
        yield listener.getsockname()[1]
    finally:
        if isinstance(service, StubPolicy):
            service.may_serve.set()
            service.may_warm_up.set()
        running.should_exit = True
        thread.join(20)
        listener.close()


def wait_for(condition: Any, limit_s: float = 5.0) -> None:
    """Until ``condition()`` holds; fails after ``limit_s``."""
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.002)
