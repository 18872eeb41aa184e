"""A policy that lives elsewhere: one observation, one answer, in time or not at all."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any, Mapping

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from ostinato_robot.codec import packb, unpackb

RESERVED = "ostinato"
RETRY_S = 0.2


class DeadlineMissed(TimeoutError):
    """There was no answer in time."""


class ServerError(RuntimeError):
    """The server answered with an error; its words, with an id that its log knows."""


class ConnectionLost(ConnectionError):
    """The server cannot be reached, or went away in the middle of a request."""


class RobotClient:
    """One robot's connection. Not for several threads at once.

    ``host``: a name or address, or a whole URI (``ws://`` or ``wss://``) with ``port`` left out.
    ``deadline_ms``: how long an answer is worth waiting for, unless a call says another; ``None``
    waits for ever. ``session_id``: of this robot; a newer observation replaces an older one that
    still waits at the server. ``connect_timeout_s``: how long to try to reach the server.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        api_key: str | None = None,
        *,
        session_id: str | None = None,
        deadline_ms: float | None = None,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._uri = host if host.startswith(("ws://", "wss://")) else "ws://" + host
        if port is not None:
            self._uri += f":{port}"
        self._headers = {"Authorization": "Api-Key " + api_key} if api_key else None
        self._session_id = session_id
        self._deadline_ms = deadline_ms
        self._connect_timeout_s = connect_timeout_s
        self._context: Any = None
        self._socket: Any = None
        self._metadata: dict[str, Any] = {}
        self._num_stale = 0  # answers that are still to come and that nobody wants
        self._connect()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server said of its policy when it was connected to last."""
        return self._metadata

    def get_server_metadata(self) -> dict[str, Any]:
        """``metadata`` under openpi's name."""
        return self._metadata

    def reset(self) -> None:
        """An episode begins; what depends on the past is in each request."""

    def infer(
        self, observation: Mapping[str, Any], *, deadline_ms: float | None = None
    ) -> dict[str, Any]:
        """The server's reply: ``actions`` (horizon, D) and its times.

        Connects again first where the connection is gone. Raises ``DeadlineMissed``,
        ``ServerError`` or ``ConnectionLost``; a request is never sent twice.
        """
        began_s = time.monotonic()
        limit_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        until_s = None if limit_ms is None else began_s + limit_ms / 1e3
        if self._socket is None:
            self._connect(until_s)
        request_id = uuid.uuid4().hex
        wishes = dict(observation.get(RESERVED) or {}, request_id=request_id)
        if self._session_id is not None:
            wishes.setdefault("session_id", self._session_id)
        if until_s is not None:
            wishes.setdefault("deadline_ms", max(1.0, (until_s - time.monotonic()) * 1e3))
        data = packb(dict(observation, **{RESERVED: wishes}))
        try:
            self._socket.send(data)
            return self._await(request_id, until_s, limit_ms)
        except ConnectionClosed as error:
            self.close()
            raise ConnectionLost(f"{self._uri} went away: {error}") from None

    def _await(
        self, request_id: str, until_s: float | None, limit_ms: float | None
    ) -> dict[str, Any]:
        """Answers come in the order of the requests: those of older ones are thrown away."""
        while True:
            left_s = None if until_s is None else until_s - time.monotonic()
            try:
                if left_s is not None and left_s <= 0:
                    raise TimeoutError
                frame = self._socket.recv(timeout=left_s)
            except TimeoutError:
                self._num_stale += 1
                raise DeadlineMissed(f"no answer within {limit_ms} ms") from None
            if self._num_stale:
                self._num_stale -= 1
                continue
            if isinstance(frame, bytes):
                reply: dict[str, Any] = unpackb(frame)
                return reply
            if frame.startswith("[deadline-missed]"):
                raise DeadlineMissed(frame)
            if not frame.startswith("[superseded]"):
                self.close()  # the server closes after an error; the next call connects again
            raise ServerError(frame)

    def _connect(self, until_s: float | None = None) -> None:
        limit_s = time.monotonic() + self._connect_timeout_s
        until_s = limit_s if until_s is None else min(limit_s, until_s)
        while True:
            left_s = max(0.05, until_s - time.monotonic())
            try:
                self._context = connect(
                    self._uri,
                    compression=None,
                    max_size=None,
                    additional_headers=self._headers,
                    open_timeout=left_s,
                    close_timeout=1,
                )
                self._socket = self._context.__enter__()
                self._metadata = unpackb(self._socket.recv(timeout=left_s))
                self._num_stale = 0
                return
            except (OSError, TimeoutError, WebSocketException) as error:
                self.close()
                is_refused = isinstance(error, WebSocketException)
                if is_refused or time.monotonic() + RETRY_S >= until_s:
                    raise ConnectionLost(f"{self._uri} cannot be reached: {error}") from None
                time.sleep(RETRY_S)

    def close(self) -> None:
        """Leave; a later ``infer`` connects again."""
        context, self._context, self._socket = self._context, None, None
        self._num_stale = 0
        if context is not None:
            with contextlib.suppress(OSError, WebSocketException):
                context.__exit__(None, None, None)

    def __enter__(self) -> RobotClient:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
