"""What every request passes before a handler: an id, the key, the size of its body; and errors.

A client gets an error with an id and never a traceback; the traceback is logged under that id.
"""

from __future__ import annotations

import hmac
import logging
import re
import uuid
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ostinato.errors import (
    DeadlineMissed,
    InputError,
    Overloaded,
    PromptTooLong,
    RefusedItem,
    Superseded,
    UnsafeActions,
)
from ostinato.serve.metrics import Metrics
from ostinato.serve.settings import ServerSettings

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/healthz", "/readyz"})
KEY_SCHEMES = ("Bearer", "Api-Key")


class BodyTooLarge(InputError):
    """A request body above the limit (413)."""


class UnknownModel(InputError):
    """A model that this server does not have (404)."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, refused as soon as it grows above the limit."""
    stated = request.headers.get("content-length", "0")
    if stated.isdigit() and int(stated) > max_bytes:
        raise BodyTooLarge(f"the body has {stated} bytes, at most {max_bytes} are allowed")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise BodyTooLarge(f"the body has more than the allowed {max_bytes} bytes")
    return bytes(body)


def has_key(request: HTTPConnection, api_key: str) -> bool:
    """True for ``Authorization: Bearer KEY`` and openpi's ``Api-Key KEY``, in constant time."""
    given = request.headers.get("authorization", "").encode()
    return any(hmac.compare_digest(given, f"{scheme} {api_key}".encode()) for scheme in KEY_SCHEMES)


def error_body(
    message: str, kind: str, code: str | None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's form of an error. ``code``: the rule that was broken."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def rule_of(error: Exception) -> str | None:
    """``broken-image`` of ``[broken-image] ...``; a place may stand before it."""
    found = re.search(r"(?:^|: )\[([a-z0-9-]+)\] ", str(error))
    return found[1] if found else None


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What a client is told of an error, over HTTP or a websocket."""

    status: int
    message: str
    kind: str
    code: str | None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.kind, self.code, self.param)


def error_facts(error: Exception, request_id: str) -> ErrorFacts:
    """The status and the words for an error; what nobody raised on purpose is logged and hidden."""
    if isinstance(error, InputError):
        status, code = 400, rule_of(error)
        if isinstance(error, BodyTooLarge):
            status, code = 413, "request-too-large"
        elif isinstance(error, UnknownModel):
            status, code = 404, "model_not_found"
        elif isinstance(error, PromptTooLong):
            code = "context_length_exceeded"
        param = error.place if isinstance(error, RefusedItem | PromptTooLong) else None
        return ErrorFacts(status, str(error), "invalid_request_error", code, param)
    if isinstance(error, Overloaded | CancelledError):
        message, retry_after_s = "the server is stopping", 1
        if isinstance(error, Overloaded):
            message, retry_after_s = str(error), error.retry_after_s
        headers = {"Retry-After": str(retry_after_s)}
        return ErrorFacts(503, message, "server_error", "overloaded", headers=headers)
    if isinstance(error, DeadlineMissed | Superseded | UnsafeActions):
        status = {DeadlineMissed: 504, Superseded: 409, UnsafeActions: 500}[type(error)]
        return ErrorFacts(status, str(error), "server_error", rule_of(error))
    logger.error("request %s failed", request_id, exc_info=error)
    return ErrorFacts(500, f"internal error {request_id}", "server_error", "internal_error")


def error_reply(error: Exception, request_id: str) -> JSONResponse:
    """The same as an HTTP reply."""
    facts = error_facts(error, request_id)
    return JSONResponse(facts.body(), facts.status, facts.headers)


class Guard:
    """Wraps the whole app. Plain ASGI: the chunks of a body pass without another queue."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the app answer, with the request's id."""
        api_key = self._settings.api_key
        if scope["type"] == "websocket" and api_key and not has_key(HTTPConnection(scope), api_key):
            self._metrics.count_refusal(401)
            await WebSocket(scope, receive, send).send_denial_response(_no_key())
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        request_id = request.headers.get("x-request-id", "")[:64] or uuid.uuid4().hex
        request.state.request_id = request_id
        is_open = request.url.path in OPEN_PATHS
        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
                if message["status"] >= 400 and not is_open:
                    self._metrics.count_refusal(message["status"])
            await send(message)

        if api_key is not None and not is_open and not has_key(request, api_key):
            await _no_key()(scope, receive, send_with_id)
            return
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if has_begun:
                raise
            await error_reply(error, request_id)(scope, receive, send_with_id)


def _no_key() -> JSONResponse:
    content = error_body("wrong or missing API key", "invalid_request_error", "invalid_api_key")
    return JSONResponse(content, 401, {"WWW-Authenticate": "Bearer"})


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    content = error_body(str(error.detail), "invalid_request_error", None)
    return JSONResponse(content, error.status_code, error.headers)


def install_guard(app: FastAPI, settings: ServerSettings, metrics: Metrics) -> None:
    """Wrap every route of the app."""
    app.add_middleware(Guard, settings=settings, metrics=metrics)
    app.add_exception_handler(HTTPException, _http_error)
