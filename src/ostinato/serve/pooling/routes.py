"""``POST /pooling`` and the refusal of ``/v1/embeddings``.

The event loop reads the socket and waits. Parsing, base64 and the service's ``prepare`` run in a
worker thread, the model on the device thread, the encoding of the reply in a worker thread again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ostinato.errors import InputError, RefusedItem
from ostinato.serve import service as protocol
from ostinato.serve.device_thread import DeviceThread
from ostinato.serve.guard import error_body, read_body
from ostinato.serve.media import read_url
from ostinato.serve.metrics import Metrics
from ostinato.serve.models import check_model
from ostinato.serve.pooling import replies as wire
from ostinato.serve.pooling.schemas import (
    Media,
    PoolingRequest,
    check_task,
    find_media,
    options_of,
    parse_request,
)
from ostinato.serve.service import Reply, Service
from ostinato.serve.settings import ServerSettings

WHERE_TO_GO = (
    "this server has vision towers, which give one matrix per image or video and no single vector; "
    'send the same content to POST /pooling with "task": "token_embed"'
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose items are ready for the device, or answered already."""

    request: PoolingRequest
    items: Sequence[protocol.Request | Reply]
    stage_ms: dict[str, float]


class Preparer:
    """Turns a body into prepared items. Called in worker threads."""

    def __init__(self, service: Service, settings: ServerSettings) -> None:
        self._service = service
        self._settings = settings

    def __call__(self, body: bytes) -> Prepared:
        """Raises ``InputError``; for an item, one that names where it stands."""
        began_s = time.perf_counter()
        request = parse_request(body)
        check_task(request)
        check_model(request.model, self._service)
        media = find_media(request, self._settings.max_items)
        options = options_of(request)
        requests = [self._read(item, options) for item in media]
        parsed_s = time.perf_counter()
        prepared: list[protocol.Request | Reply] = []
        for item, result in zip(media, self._service.prepare(requests), strict=True):
            if isinstance(result, InputError):
                raise RefusedItem(item.place, result)
            if isinstance(result, Exception):
                raise result
            prepared.append(result)
        parse_ms = (parsed_s - began_s) * 1e3
        prepare_ms = (time.perf_counter() - parsed_s) * 1e3
        return Prepared(request, prepared, {"parse": parse_ms, "prepare": prepare_ms})

    def _read(self, item: Media, options: dict[str, Any]) -> protocol.Request:
        try:
            content = read_url(item.url, self._settings.media)
        except InputError as error:
            raise RefusedItem(item.place, error) from None
        return protocol.Request({"kind": item.kind, "content": content, "options": options})


async def serve_items(
    device: DeviceThread, items: Sequence[protocol.Request | Reply]
) -> list[Reply]:
    """Replies in order; what is not answered yet goes to the device together."""
    waiting = [item for item in items if isinstance(item, protocol.Request)]
    futures = [asyncio.wrap_future(future) for future in device.submit_all(waiting)]
    try:
        served = iter(await asyncio.gather(*futures))
    finally:
        for future in futures:  # a client that left, or a neighbour that failed
            future.cancel()
    return [item if isinstance(item, Reply) else next(served) for item in items]


def pooling_router(
    service: Service,
    device: DeviceThread,
    metrics: Metrics,
    settings: ServerSettings,
    workers: Executor,
) -> APIRouter:
    """The routes and nothing else."""
    router = APIRouter(tags=["pooling"])
    prepare = Preparer(service, settings)

    @router.post("/pooling")
    async def pooling(request: Request) -> Response:
        began_s = time.perf_counter()
        run = asyncio.get_running_loop().run_in_executor
        device.check_room()
        body = await read_body(request, settings.max_body_bytes)
        read_ms = (time.perf_counter() - began_s) * 1e3
        prepared = await run(workers, prepare, body)
        replies = await serve_items(device, prepared.items)
        wanted = prepared.request
        if request.headers.get("x-ostinato-stage-times") == "1":
            wanted = wanted.model_copy(update={"stage_times": True})
        stages = {"read": read_ms, **prepared.stage_ms, **wire.merge_stages(replies)}
        accepted = request.headers.get("accept", "").lower().split(",")
        is_file = wire.SAFETENSORS in {kind.partition(";")[0].strip() for kind in accepted}
        head = wire.head_of(request.state.request_id, service.name, replies)
        encoded = await run(
            workers, wire.encode_body, wanted, is_file, head, replies, stages, began_s
        )
        metrics.count_routes(reply.route for reply in replies)
        metrics.count_stages(stages)
        return Response(
            encoded.content, media_type=encoded.media_type, headers=dict(encoded.headers)
        )

    @router.post("/v1/embeddings")
    async def embeddings() -> JSONResponse:
        content = error_body(WHERE_TO_GO, "invalid_request_error", "use-pooling")
        return JSONResponse(content, 400)

    return router
