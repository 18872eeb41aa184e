"""``/health`` and ``/healthz`` (the process works) and ``/readyz`` (the warm-up is over)."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ostinato.serve.device_thread import DeviceThread, Phase


def health_router(device: DeviceThread) -> APIRouter:
    """Routes that answer from the device thread's phase and never wait for it."""
    router = APIRouter(tags=["health"])

    def answer(is_good: bool) -> JSONResponse:
        status = 200 if is_good else 503
        headers = {} if is_good else {"Retry-After": "1"}
        return JSONResponse({"status": device.phase.value}, status, headers)

    @router.get("/health")
    @router.get("/healthz")
    async def alive() -> JSONResponse:
        return answer(device.phase in {Phase.STARTING, Phase.READY})

    @router.get("/readyz")
    async def ready() -> JSONResponse:
        return answer(device.phase is Phase.READY)

    return router
