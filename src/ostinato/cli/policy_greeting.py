"""What a fresh policy server is asked first, by itself, over the protocol that robots speak."""

from __future__ import annotations

import time

import numpy as np

from ostinato.cli.greeting import Echo
from ostinato.errors import ConfigError
from ostinato.serve.openpi.codec import packb, unpackb
from ostinato.serve.settings import ServerSettings


def greet_policy(settings: ServerSettings, echo: Echo) -> None:
    """One observation of grey cameras; prints what came back.

    Served directly: the first recorded answer is checked against a direct one, and is left to the
    first robot.
    """
    from websockets.sync.client import connect

    headers = {"Authorization": f"Api-Key {settings.api_key}"} if settings.api_key else {}
    address = f"ws://{settings.host}:{settings.port}"
    with connect(address, additional_headers=headers, compression=None, max_size=None) as socket:
        metadata = unpackb(_binary(socket.recv()))
        wanted = metadata["input"]
        grey = np.full((*wanted["camera_hw"], 3), 128, np.uint8)
        observation = {
            "images": dict.fromkeys(wanted["camera_keys"], grey),
            "state": np.zeros(wanted["state_dim"], np.float32),
            "prompt": "",
            "enable_cuda_graph": False,
        }
        began_s = time.perf_counter()
        socket.send(packb(observation))
        reply = unpackb(_binary(socket.recv()))
        took_ms = (time.perf_counter() - began_s) * 1e3
    cameras = " + ".join(wanted["camera_keys"])
    horizon, dim = reply["actions"].shape
    infer_ms = reply["server_timing"]["infer_ms"]
    echo(
        f"{cameras} -> {horizon} x {dim} actions in {took_ms:.1f} ms ({infer_ms:.1f} in the policy)"
    )


def _binary(frame: str | bytes) -> bytes:
    if isinstance(frame, str):
        raise ConfigError(f"the server answered the greeting with an error: {frame}")
    return frame
