"""``GET /v1/models``: the one model that is served, and what a client must know to size inputs."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from ostinato.serve.service import Service


def models_router(service: Service) -> APIRouter:
    """OpenAI's list with our facts beside its fields."""
    router = APIRouter(tags=["models"])
    created = int(time.time())

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {
            "id": service.name,
            "object": "model",
            "created": created,
            "owned_by": "ostinato",
            **service.describe(),
        }
        return {"object": "list", "data": [entry]}

    return router
