"""Runs a server, sends it the shipped photograph, prints how it was served, keeps serving."""

from __future__ import annotations

import http.client
import io
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import uvicorn

from ostinato.assets.photograph import NAME, photograph_bytes
from ostinato.serve.app import build_app
from ostinato.serve.device_thread import DeviceThread, Phase
from ostinato.serve.service import Service
from ostinato.serve.settings import ServerSettings

WARM_UP_LIMIT_S = 600.0
Echo = Callable[[str], Any]


def half_photograph() -> bytes:
    """The photograph at half its size: a shape that the start-up did not record."""
    from PIL import Image

    target = io.BytesIO()
    with Image.open(io.BytesIO(photograph_bytes())) as image:
        image.reduce(2).save(target, format="PNG")
    return target.getvalue()


def post_image(settings: ServerSettings, content: bytes) -> dict[str, Any]:
    """One request over the loopback, as a client would send it."""
    connection = http.client.HTTPConnection(settings.host, settings.port, timeout=60)
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    try:
        connection.request("POST", "/encode", body=content, headers=headers)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(
            f"the server answered {response.status}: {body.decode(errors='replace')}"
        )
    answer: dict[str, Any] = json.loads(body)
    return answer


def greet(settings: ServerSettings, echo: Echo) -> None:
    """Send the photograph twice and a smaller one, and print how each was served."""
    calls = [
        (NAME, photograph_bytes()),
        (f"{NAME}, again", photograph_bytes()),
        (f"{NAME}, half size", half_photograph()),
    ]
    for label, content in calls:
        began_s = time.monotonic()
        answer = post_image(settings, content)
        took_ms = (time.monotonic() - began_s) * 1e3
        shape = answer["outputs"]["tokens"]["shape"]
        echo(
            f"{label:<26} {shape[0]:>5} tokens  {answer['route']:<6} {took_ms:6.1f} ms  "
            f"({answer['reason']})"
        )


def run_server(service: Service, settings: ServerSettings, *, is_once: bool, echo: Echo) -> int:
    """Serve until stopped; with ``is_once`` only the greeting. Returns an exit status."""
    app = build_app(service, settings)
    device: DeviceThread = app.state.device
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_level="warning", ws="none", lifespan="on"
    )
    listener = config.bind_socket()
    settings = replace(settings, port=listener.getsockname()[1])
    server = uvicorn.Server(config)
    failures: list[str] = []

    def greet_when_ready() -> None:
        try:
            phase = device.wait_until_settled(WARM_UP_LIMIT_S)
            if phase is not Phase.READY:
                raise RuntimeError(f"the warm-up ended as {phase.value}: {device.error}")
            greet(settings, echo)
            if not is_once:
                echo(f"serving {service.name} on http://{settings.host}:{settings.port}")
        except Exception as error:
            failures.append(str(error))
            echo(f"error: {error}")
        if is_once or failures:
            server.should_exit = True

    greeter = threading.Thread(target=greet_when_ready, name="ostinato-greeter", daemon=True)
    greeter.start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        echo("stopped")
    finally:
        listener.close()
    return 1 if failures else 0
