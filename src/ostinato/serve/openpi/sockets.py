"""Websockets of robots: openpi's dialogue on ``/``, envelopes on ``/v1/actions/realtime``.

A connection is read all the time, so a client that leaves is noticed while its answer is made, and
pings are answered. What it sends meanwhile waits, up to a bound.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from starlette.websockets import WebSocketState

from ostinato.errors import DeadlineMissed, InputError, Superseded
from ostinato.serve.guard import ErrorFacts
from ostinato.serve.openpi.codec import Buffer, CodecLimits, packb
from ostinato.serve.openpi.desk import Desk, Ticket
from ostinato.serve.openpi.messages import MSGPACK, Ask, read_frame, read_generation
from ostinato.serve.openpi.replies import encode, envelope, openpi_map

FAILED = 1011
REASON = "Internal server error. Message and error id in previous frame."
RESET_DONE = "reset successful"
STAYS_OPEN = (DeadlineMissed, Superseded)
"""Errors that only a client of our own wishes can get; its next observation is as good as any."""


class _Gone(Exception):
    """The client left."""


class Conversation(ABC):
    """One connection: reads and answers side by side until either ends."""

    def __init__(self, socket: WebSocket, desk: Desk, client: str, max_in_flight: int) -> None:
        self.socket = socket
        self.desk = desk
        self.client = client
        self.max_in_flight = max_in_flight
        self.waiting: set[Ticket] = set()

    async def run(self) -> None:
        """Greet, then serve until the client leaves or an error ends it."""
        await self.socket.accept()
        self.desk.metrics.clients.inc()
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.socket.send_bytes(packb(self.desk.metadata()))
            tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self.answer())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (_Gone, WebSocketDisconnect):
            pass
        finally:
            self.desk.metrics.clients.dec()
            for task in tasks:
                task.cancel()
            for ticket in self.waiting:
                ticket.abandon()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                raise _Gone
            body = message.get("bytes")
            ticket: Ticket | None
            if body is None:
                ticket = self._refused("[text-frame] a text frame; expected a binary one (msgpack)")
            elif len(self.waiting) >= self.max_in_flight:
                ticket = self._refused(
                    f"[in-flight] {len(self.waiting)} requests of this connection wait for their "
                    f"answers; expected {self.max_in_flight} at most"
                )
            else:
                ticket = self.desk.admit_at_once(body, self.read, client=self.client)
                if ticket is None:
                    ticket = await self.desk.admit(body, self.read, client=self.client)
            self.waiting.add(ticket)
            self.take(ticket)

    def _refused(self, reason: str) -> Ticket:
        return Ticket(b"", time.monotonic(), self.client, "", error=InputError(reason))

    @abstractmethod
    def read(self, body: Buffer, limits: CodecLimits) -> Ask:
        """A message of this dialect."""

    @abstractmethod
    def take(self, ticket: Ticket) -> None:
        """A message came."""

    @abstractmethod
    async def answer(self) -> None:
        """Answer until the connection should end."""


class OpenpiConversation(Conversation):
    """Strictly one reply per message, in order; an error is a text frame, then close code 1011."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tickets: asyncio.Queue[Ticket] = asyncio.Queue()
        self._prev_total_ms: float | None = None

    def read(self, body: Buffer, limits: CodecLimits) -> Ask:
        return read_frame(body, limits)

    def take(self, ticket: Ticket) -> None:
        self._tickets.put_nowait(ticket)

    async def answer(self) -> None:
        is_open = True
        while is_open:
            ticket = await self._tickets.get()
            try:
                is_open = await self._answer(ticket)
            finally:
                self.waiting.discard(ticket)

    async def _answer(self, ticket: Ticket) -> bool:
        """Answer one; false when the connection should end."""
        ask = ticket.ask
        if ask is not None and ask.is_reset and ticket.error is None:
            await self.socket.send_text(RESET_DONE)
            return True
        try:
            answer = await self.desk.settle(ticket)
        except Exception as error:
            facts = self.desk.failed(ticket, error)
            await self.socket.send_text(f"{facts.message} (error id {ticket.request_id})")
            if isinstance(error, STAYS_OPEN):
                return True
            await self.socket.close(FAILED, REASON)
            return False
        is_bare = ask is not None and ask.dialect == "roboarena"
        reply = packb(answer.actions if is_bare else openpi_map(answer, self._prev_total_ms))
        await self.socket.send_bytes(reply)
        self._prev_total_ms = self.desk.sent(ticket, answer, reply, MSGPACK)
        return True


class RealtimeConversation(Conversation):
    """An envelope per observation, as soon as it is there; errors are maps and end nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._answers: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def read(self, body: Buffer, limits: CodecLimits) -> Ask:
        return read_generation(body, limits, is_msgpack=True, is_numpy=True)

    def take(self, ticket: Ticket) -> None:
        task = asyncio.create_task(self._answer(ticket))
        self._answers.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._ended.done():
            self._ended.set_exception(error)

    async def answer(self) -> None:
        try:
            await self._ended
        finally:
            for task in self._answers:
                task.cancel()

    async def _answer(self, ticket: Ticket) -> None:
        try:
            answer = await self.desk.settle(ticket)
        except Exception as error:
            facts = self.desk.failed(ticket, error)
            await self.socket.send_bytes(packb(error_map(facts, ticket.request_id)))
            return
        finally:
            self.waiting.discard(ticket)
        assert ticket.ask is not None
        body = envelope(answer, ticket.ask.form, self.desk.service.name)
        reply = encode(body, is_msgpack=True)
        await self.socket.send_bytes(reply)
        self.desk.sent(ticket, answer, reply, MSGPACK)


def error_map(facts: ErrorFacts, request_id: str) -> dict[str, Any]:
    """OpenAI's form of an error, with the id of the request."""
    return {"object": "error", "request_id": request_id, **facts.body()}


def sockets_router(desk: Desk, max_in_flight: int) -> APIRouter:
    """All websockets. Openpi's clients may ask for any path, as openpi's server answers on any."""
    router = APIRouter()
    numbers = itertools.count()

    async def converse(kind: type[Conversation], socket: WebSocket) -> None:
        client = f"connection {next(numbers)}"
        try:
            await kind(socket, desk, client, max_in_flight).run()
        except RuntimeError:
            # starlette's word for a send after the close that both sides began at once
            if socket.application_state is not WebSocketState.DISCONNECTED:
                raise

    @router.websocket("/v1/actions/realtime")
    async def realtime(socket: WebSocket) -> None:
        await converse(RealtimeConversation, socket)

    @router.websocket("/{path:path}")
    async def openpi(socket: WebSocket, path: str) -> None:
        if path.startswith("v1/"):
            await socket.close()  # before it is accepted: 403
        else:
            await converse(OpenpiConversation, socket)

    return router
