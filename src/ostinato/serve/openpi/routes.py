"""``POST /v1/actions/generations`` and ``GET /v1/actions/metadata``, and openpi's 426."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from ostinato.serve.guard import read_body
from ostinato.serve.leaving import ClientLeft, unless_left
from ostinato.serve.openpi.desk import Desk, Ticket
from ostinato.serve.openpi.messages import MSGPACK, read_generation
from ostinato.serve.openpi.replies import Answer, encode, envelope

JSON = "application/json"
UPGRADE_REQUIRED = (
    "Failed to open a WebSocket connection: missing Upgrade header.\n\n"
    "You cannot access a WebSocket server directly with a browser. You need a WebSocket client.\n"
)


async def settle_for(request: Request, desk: Desk, ticket: Ticket) -> Answer:
    """The answer, unless the client leaves first: then its place is free at once."""
    try:
        return await unless_left(request, desk.settle(ticket))
    finally:
        ticket.abandon()


def actions_router(desk: Desk) -> APIRouter:
    """The routes over HTTP."""
    router = APIRouter(tags=["actions"])

    @router.post("/v1/actions/generations")
    async def generations(request: Request) -> Response:
        body = await read_body(request, desk.limits.max_bytes)
        is_msgpack = "msgpack" in request.headers.get("content-type", "").lower()
        is_numpy = is_msgpack or "msgpack" in request.headers.get("accept", "").lower()
        read = partial(read_generation, is_msgpack=is_msgpack, is_numpy=is_numpy)
        ticket = await desk.admit(
            body, read, client=str(request.client), request_id=request.state.request_id
        )
        try:
            answer = await settle_for(request, desk, ticket)
        except ClientLeft:
            return Response(status_code=499)
        except Exception as error:
            facts = desk.failed(ticket, error)
            return JSONResponse(facts.body(), facts.status, facts.headers)
        assert ticket.ask is not None
        reply = encode(envelope(answer, ticket.ask.form, desk.service.name), is_msgpack=is_numpy)
        desk.sent(ticket, answer, reply, MSGPACK if is_msgpack else JSON)
        return Response(reply, media_type=MSGPACK if is_numpy else JSON)

    @router.get("/v1/actions/metadata")
    async def metadata() -> JSONResponse:
        return JSONResponse(desk.metadata())

    @router.get("/")
    @router.get("/openpi/policy")
    async def upgrade_required() -> PlainTextResponse:
        headers = {"Upgrade": "websocket"}
        return PlainTextResponse(UPGRADE_REQUIRED, 426, headers)

    return router
