"""A reply of server-sent events that notices a client that leaves, also between two events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import cast

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ostinato.serve.leaving import ClientLeft, unless_left


class EventStream(StreamingResponse):
    """Sends ``events``; ``on_end`` is called once it is over, however it ends."""

    def __init__(
        self, request: Request, events: AsyncIterator[bytes], on_end: Callable[[], None]
    ) -> None:
        # a proxy that buffers would undo the streaming
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, 200, headers, "text/event-stream")
        self._request = request
        self._events = cast("AsyncGenerator[bytes]", events)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, or stop when the client is gone."""
        try:
            await unless_left(self._request, self._send(send))
        except (ClientLeft, OSError):  # uvicorn drops what is sent too late, others raise
            pass
        finally:
            self._on_end()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._events) as events:
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
