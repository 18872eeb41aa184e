"""Builds the HTTP application around a service. No global state: two apps share nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI

from ostinato.serve.device_thread import DeviceThread
from ostinato.serve.encode import encode_router
from ostinato.serve.guard import install_guard
from ostinato.serve.health import health_router
from ostinato.serve.metrics import Metrics, metrics_router
from ostinato.serve.service import Service
from ostinato.serve.settings import ServerSettings


def installed_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("ostinato")
    except PackageNotFoundError:
        return "unknown"


def build_app(service: Service, settings: ServerSettings) -> FastAPI:
    """The application; its device thread starts and stops with it (``app.state.device``)."""
    device = DeviceThread(service, max_queued=settings.max_queued, max_batch=settings.max_batch)
    metrics = Metrics(service, device)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        device.start()
        try:
            yield
        finally:
            device.stop()

    app = FastAPI(title="Ostinato", version=installed_version(), lifespan=lifespan)
    app.state.device = device
    install_guard(app, settings, metrics)
    app.include_router(health_router(device))
    app.include_router(metrics_router(metrics))
    app.include_router(encode_router(service.name, device, metrics, settings))
    return app
