"""Runs a server, lets it answer a greeting, prints how that was served, keeps serving."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace

import uvicorn

from ostinato.cli.greeting import Echo, greet
from ostinato.serve.app import build_app
from ostinato.serve.device_thread import DeviceThread, Phase
from ostinato.serve.service import Service
from ostinato.serve.settings import ServerSettings

WARM_UP_LIMIT_S = 3600.0


def wait_until_listening(server: uvicorn.Server, limit_s: float = 60.0) -> None:
    """A warm-up may be over before the socket listens."""
    deadline_s = time.monotonic() + limit_s
    while not (server.started or server.should_exit):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the server does not listen after {limit_s:.0f} s")
        time.sleep(0.005)


def run_server(
    service: Service,
    settings: ServerSettings,
    *,
    is_once: bool,
    echo: Echo,
    is_greeting: bool = True,
) -> int:
    """Serve until stopped; with ``is_once`` only the greeting. Returns an exit status."""
    app = build_app(service, settings)
    device: DeviceThread = app.state.device
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_level="warning", ws="none", lifespan="on"
    )
    listener = config.bind_socket()
    # asyncio does this for sockets that it made itself; without it every reply waits 40 ms
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    settings = replace(settings, port=listener.getsockname()[1])
    server = uvicorn.Server(config)
    failures: list[str] = []

    def greet_when_ready() -> None:
        try:
            phase = device.wait_until_settled(WARM_UP_LIMIT_S)
            if phase is not Phase.READY:
                raise RuntimeError(f"the warm-up ended as {phase.value}: {device.error}")
            wait_until_listening(server)
            if is_greeting:
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
