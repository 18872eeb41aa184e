"""What every request passes before a handler: an id, the key, the size of its body; and errors.

A client gets an error with an id and never a traceback; the traceback is logged under that id.
"""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from ostinato.errors import InputError, Overloaded
from ostinato.serve.metrics import Metrics
from ostinato.serve.settings import ServerSettings

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/healthz", "/readyz"})

Handler = Callable[[Request], Awaitable[Response]]


class BodyTooLarge(InputError):
    """A request body above the limit (413)."""


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


def error_reply(error: Exception, request_id: str) -> JSONResponse:
    """The status and the words a client gets for an error."""
    headers = {}
    if isinstance(error, BodyTooLarge):
        status, message = 413, str(error)
    elif isinstance(error, InputError):
        status, message = 400, str(error)
    elif isinstance(error, Overloaded):
        status, message = 503, str(error)
        headers["Retry-After"] = str(error.retry_after_s)
    elif isinstance(error, CancelledError):
        status, message = 503, "the server is stopping"
        headers["Retry-After"] = "1"
    else:
        status, message = 500, f"internal error {request_id}"
        logger.error("request %s failed", request_id, exc_info=error)
    content = {"error": {"message": message, "type": type(error).__name__, "code": status}}
    if status == 500:
        content["error"]["type"] = "InternalError"
    return JSONResponse(content, status, headers)


def install_guard(app: FastAPI, settings: ServerSettings, metrics: Metrics) -> None:
    """Wrap every route of the app."""

    @app.middleware("http")
    async def guard(request: Request, call_next: Handler) -> Response:
        request_id = request.headers.get("x-request-id", "")[:64] or uuid.uuid4().hex
        needs_key = settings.api_key is not None and request.url.path not in OPEN_PATHS
        response: Response
        if needs_key and not has_key(request, settings.api_key or ""):
            content = {"error": {"message": "wrong or missing API key", "code": 401}}
            response = JSONResponse(content, 401, {"WWW-Authenticate": "Bearer"})
        else:
            try:
                response = await call_next(request)
            except Exception as error:
                response = error_reply(error, request_id)
        if response.status_code >= 400 and request.url.path not in OPEN_PATHS:
            metrics.count_refusal(response.status_code)
        response.headers["x-request-id"] = request_id
        return response
