"""Builds the HTTP application around a service. No global state: two apps share nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from ostinato.serve.device_thread import DeviceThread
from ostinato.serve.guard import install_guard
from ostinato.serve.health import health_router
from ostinato.serve.lifecycle import Lifecycle
from ostinato.serve.metrics import Metrics, metrics_router
from ostinato.serve.models import models_router
from ostinato.serve.pooling.routes import pooling_router
from ostinato.serve.service import Service
from ostinato.serve.settings import ServerSettings
from ostinato.version import installed_version


def build_app(service: Service, settings: ServerSettings) -> FastAPI:
    """The application; its threads start and stop with it (``app.state.device``)."""
    metrics = Metrics(service)
    device = DeviceThread(
        service,
        max_queued=settings.max_queued,
        max_queued_bytes=settings.max_queued_bytes,
        max_batch=settings.max_batch,
        on_batch=metrics.count_batch,
    )
    metrics.watch(device)
    workers = ThreadPoolExecutor(settings.num_workers, thread_name_prefix="ostinato-request")
    pooling = pooling_router(service, device, metrics, settings, workers)
    return assemble(settings, metrics, device, workers, [models_router(service), pooling])


def assemble(
    settings: ServerSettings,
    metrics: Metrics,
    device: Lifecycle,
    workers: ThreadPoolExecutor,
    routers: Sequence[APIRouter],
    *,
    on_start: Callable[[], None] | None = None,
    on_stop: Callable[[], None] | None = None,
) -> FastAPI:
    """What every server has (guard, health, metrics) and ``routers``; owns the threads given."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_start is not None:
            on_start()
        device.start()
        try:
            yield
        finally:
            # off the loop, so that what runs can still be answered
            await asyncio.to_thread(device.stop)
            workers.shutdown(wait=False, cancel_futures=True)
            if on_stop is not None:
                on_stop()

    app = FastAPI(title="Ostinato", version=installed_version(), lifespan=lifespan)
    app.state.device = device
    install_guard(app, settings, metrics)
    for router in (health_router(device), metrics_router(metrics), *routers):
        app.include_router(router)
    return app
