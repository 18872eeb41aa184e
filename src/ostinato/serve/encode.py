"""``POST /encode``: an image file in, the encoder's output back, and how it was served.

The small route that the first server has; the pooling protocol comes with the vision encoders.
"""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from ostinato.serve import service as protocol
from ostinato.serve.device_thread import DeviceThread
from ostinato.serve.guard import read_body
from ostinato.serve.images import decode_image
from ostinato.serve.metrics import Metrics
from ostinato.serve.settings import ServerSettings


def describe_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Type, shape and little-endian bytes in base64."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    data = base64.b64encode(plain.tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}


def encode_router(
    model: str, device: DeviceThread, metrics: Metrics, settings: ServerSettings
) -> APIRouter:
    """The route and nothing else; decoding runs in a worker thread."""
    router = APIRouter(tags=["encode"])

    @router.post("/encode")
    async def encode(request: Request) -> dict[str, Any]:
        body = await read_body(request, settings.max_body_bytes)
        began_s = time.monotonic()
        image = await asyncio.to_thread(decode_image, body, max_pixels=settings.max_image_pixels)
        decode_ms = (time.monotonic() - began_s) * 1e3
        future = device.submit(protocol.Request({"image": image}))
        reply = await asyncio.wrap_future(future)
        reply = replace(reply, stage_ms={"decode": decode_ms, **reply.stage_ms})
        metrics.count_reply(reply)
        return {
            "model": model,
            "outputs": {name: describe_array(array) for name, array in reply.outputs.items()},
            "route": reply.route,
            "reason": reply.reason,
            "stage_ms": dict(reply.stage_ms),
        }

    return router
