"""``GET /v1/models``: the one model that is served, and what a client must know to size inputs."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from ostinato.serve.guard import UnknownModel
from ostinato.serve.service import Served


def check_model(name: str | None, service: Served) -> None:
    """Refuse a model that this server does not have; ``None`` is the one it has."""
    if name is not None and name != service.name:
        raise UnknownModel(f"the model {name!r} does not exist; this server has {service.name}")


def models_router(service: Served) -> APIRouter:
    """OpenAI's list with our facts beside its fields."""
    router = APIRouter(tags=["models"])
    created = int(time.time())

    def entry() -> dict[str, Any]:
        return {
            "id": service.name,
            "object": "model",
            "created": created,
            "owned_by": "ostinato",
            **service.describe(),
        }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry()]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        check_model(name, service)
        return entry()

    return router
