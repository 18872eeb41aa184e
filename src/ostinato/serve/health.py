"""``/health`` and ``/healthz`` (the process works) and ``/readyz`` (the warm-up is over)."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse

from ostinato.serve.device_thread import Phase
from ostinato.serve.lifecycle import Lifecycle


def health_router(device: Lifecycle) -> APIRouter:
    """Routes that answer from the model's phase and never wait for it."""
    router = APIRouter(tags=["health"])

    def answer(is_good: bool) -> JSONResponse:
        status = 200 if is_good else 503
        headers = {} if is_good else {"Retry-After": "1"}
        return JSONResponse({"status": device.phase.value}, status, headers)

    def is_alive() -> bool:
        return device.phase in {Phase.STARTING, Phase.READY}

    @router.get("/health")
    async def alive() -> JSONResponse:
        return answer(is_alive())

    @router.get("/healthz")
    async def alive_in_a_word() -> PlainTextResponse:  # openpi's servers say this and no more
        return PlainTextResponse("OK\n") if is_alive() else PlainTextResponse("failed\n", 503)

    @router.get("/readyz")
    async def ready() -> JSONResponse:
        return answer(device.phase is Phase.READY)

    return router
