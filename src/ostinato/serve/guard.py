"""What every request passes before a handler: an id, the key, the size of its body; and errors.

A client gets an error with an id and never a traceback; the traceback is logged under that id.
"""

from __future__ import annotations

import hmac
import logging
import re
import uuid
from concurrent.futures import CancelledError
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostinato.errors import InputError, Overloaded
from ostinato.serve.metrics import Metrics
from ostinato.serve.settings import ServerSettings

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/healthz", "/readyz"})


class BodyTooLarge(InputError):
    """A request body above the limit (413)."""


class UnknownModel(InputError):
    """A model that this server does not have (404)."""


class RefusedItem(InputError):
    """One of several items of a request cannot be served; ``place`` is where it stands."""

    def __init__(self, place: str, cause: InputError) -> None:
        self.place = place
        super().__init__(f"{place}: {cause}")


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


def has_key(request: Request, api_key: str) -> bool:
    """True for ``Authorization: Bearer KEY``, compared in constant time."""
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode())


def error_body(
    message: str, kind: str, code: str | None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's form of an error. ``code``: the rule that was broken."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def rule_of(error: Exception) -> str | None:
    """``broken-image`` of ``[broken-image] ...``; a place may stand before it."""
    found = re.search(r"(?:^|: )\[([a-z0-9-]+)\] ", str(error))
    return found[1] if found else None


def error_reply(error: Exception, request_id: str) -> JSONResponse:
    """The status and the words a client gets for an error."""
    if isinstance(error, InputError):
        status, code = 400, rule_of(error)
        if isinstance(error, BodyTooLarge):
            status, code = 413, "request-too-large"
        elif isinstance(error, UnknownModel):
            status, code = 404, "model_not_found"
        param = error.place if isinstance(error, RefusedItem) else None
        return JSONResponse(error_body(str(error), "invalid_request_error", code, param), status)
    if isinstance(error, Overloaded | CancelledError):
        message, retry_after_s = "the server is stopping", 1
        if isinstance(error, Overloaded):
            message, retry_after_s = str(error), error.retry_after_s
        headers = {"Retry-After": str(retry_after_s)}
        return JSONResponse(error_body(message, "server_error", "overloaded"), 503, headers)
    logger.error("request %s failed", request_id, exc_info=error)
    message = f"internal error {request_id}"
    return JSONResponse(error_body(message, "server_error", "internal_error"), 500)


class Guard:
    """Wraps the whole app. Plain ASGI: the chunks of a body pass without another queue."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the app answer, with the request's id."""
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

        api_key = self._settings.api_key
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
