"""Runs a server, lets it answer a greeting, prints how that was served, keeps serving."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from ostinato.cli.greeting import Busy, Echo, greet
from ostinato.serve.app import build_app
from ostinato.serve.device_thread import Phase
from ostinato.serve.large_frames import LargeFrames
from ostinato.serve.lifecycle import Lifecycle
from ostinato.serve.service import Service
from ostinato.serve.settings import ServerSettings

WARM_UP_LIMIT_S = 3600.0


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """Decision 0012. Raw images are large and do not compress in the time that there is."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        lifespan="on",
        ws=LargeFrames,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=settings.ping_interval_s,
        ws_ping_timeout=settings.ping_timeout_s,
    )


def wait_until_listening(server: uvicorn.Server, limit_s: float = 60.0) -> None:
    """A warm-up may be over before the socket listens."""
    deadline_s = time.monotonic() + limit_s
    while not (server.started or server.should_exit):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the server does not listen after {limit_s:.0f} s")
        time.sleep(0.005)


def greet_unless_busy(
    greeting: Callable[[ServerSettings, Echo], None], settings: ServerSettings, echo: Echo
) -> None:
    """Clients go first."""
    try:
        greeting(settings, echo)
    except Busy:
        echo("clients are being served already: the greeting ends here")


def run_server(
    service: Service,
    settings: ServerSettings,
    *,
    is_once: bool,
    echo: Echo,
    is_greeting: bool = True,
) -> int:
    """``run_app`` for an encoder."""
    return run_app(
        build_app(service, settings),
        settings,
        name=service.name,
        is_once=is_once,
        echo=echo,
        greeting=greet if is_greeting else None,
    )


def run_app(
    app: FastAPI,
    settings: ServerSettings,
    *,
    name: str,
    is_once: bool,
    echo: Echo,
    greeting: Callable[[ServerSettings, Echo], None] | None,
) -> int:
    """Serve until stopped; with ``is_once`` only the greeting. Returns an exit status.

    ``name``: the model's, for the line that says where it is served.
    """
    device: Lifecycle = app.state.device
    config = uvicorn_config(app, settings)
    listener = config.bind_socket()
    # asyncio does this for sockets that it made itself; without it every reply waits 40 ms
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    settings = replace(settings, port=listener.getsockname()[1])
    server = uvicorn.Server(config)
    failures: list[str] = []

    def greet_when_ready() -> None:
        try:
            phase = device.wait_until_settled(WARM_UP_LIMIT_S)
            if phase is Phase.STOPPED:
                return
            if phase is not Phase.READY:
                raise RuntimeError(f"the warm-up ended as {phase.value}: {device.error}")
            wait_until_listening(server)
            gc.collect()
            gc.freeze()  # a full collection of all that was loaded holds every thread for 0.1 s
            if greeting is not None:
                greet_unless_busy(greeting, settings, echo)
            if not is_once:
                echo(f"serving {name} on http://{settings.host}:{settings.port}")
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
        gc.unfreeze()
        listener.close()
    return 1 if failures else 0
