"""Raw images over a websocket: a large frame is received where it stays, and unmasked as it comes.

uvicorn's protocol appends every chunk to a buffer, cuts the frame out of it and unmasks a copy:
each byte of three cameras is moved four times, half of that after the last one came. Here the
socket writes into the message itself. Everything but whole, large, binary frames passes to
``websockets`` untouched: it decides what a frame, a ping, a close or an error is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

LARGE = 2**16
WHOLE_BINARY, MASKED = 0x82, 0x80
_READ = 2**16
_LENGTHS = {126: 2, 127: 8}
"""Bytes that hold the length, by what stands in its place."""


class LargeFrame:
    """One that is being received; ``body`` is it, in the end."""

    def __init__(self, num_bytes: int, mask: bytes) -> None:
        # nothing is touched before it comes: a header may claim what it likes
        self._bytes = np.empty(num_bytes, np.uint8)
        self._words = self._bytes[: num_bytes // 8 * 8].view(np.uint64)
        self._mask = np.frombuffer(mask * 2, np.uint64)
        self._num_filled = 0
        self._num_words = 0
        self.body = self._bytes.data

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong."""
        return self.body[self._num_filled :]

    def fill(self, num_bytes: int) -> bool:
        """So many came; true when that was all, and ``body`` is readable and nothing else."""
        self._num_filled += num_bytes
        is_whole = self._num_filled == len(self.body)
        words = self._words[self._num_words : self._num_filled // 8]
        np.bitwise_xor(words, self._mask, out=words)
        self._num_words += len(words)
        if is_whole:
            rest = self._bytes[self._num_words * 8 :]
            rest ^= self._mask.view(np.uint8)[: len(rest)]
            self.body = self.body.toreadonly()
        return is_whole


class FrameSplitter:
    """Takes large frames out of a stream of bytes. Knows frames' ends, and nothing of a socket.

    ``on_other`` gets everything else, in order; ``on_large`` the messages. ``is_open`` is asked
    before a frame is taken: after a close, frames mean nothing.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        on_large: Callable[[memoryview], None],
        on_other: Callable[[bytes], None],
        is_open: Callable[[], bool],
    ) -> None:
        self._max_bytes = max_bytes
        self._on_large = on_large
        self._on_other = on_other
        self._is_open = is_open
        self._scratch = memoryview(bytearray(_READ))
        self._head = b""  # of a frame whose kind is not known yet
        self._num_left = 0  # bytes of a frame that passes
        self._is_in_parts = False
        self._large: LargeFrame | None = None

    def room(self) -> memoryview:
        """Where the next bytes of the stream belong; never empty."""
        return self._scratch if self._large is None else self._large.room

    def fill(self, num_bytes: int) -> None:
        """So many came into ``room``."""
        if self._large is None:
            self._split(self._head + self._scratch[:num_bytes])
        else:
            self._fill_large(num_bytes)

    def _split(self, data: bytes) -> None:
        begin = 0  # of what has not passed yet
        at = min(self._num_left, len(data))
        self._num_left -= at
        self._head = b""
        while at < len(data):
            size, length = _header(data, at)
            if size is None:
                self._head = data[at:]
                break
            if self._is_large(data, at, length):
                self._pass(data[begin:at])
                begin = at
                if self._is_open():  # and was not closed by what just passed
                    at += size
                    taken = data[at : at + length]
                    self._large = LargeFrame(length, data[at - 4 : at])
                    self._large.room[: len(taken)] = taken
                    self._fill_large(len(taken))
                    begin = at = at + len(taken)
                    continue
            self._note_parts(data[at])
            passed = min(len(data) - at, size + length)
            self._num_left = size + length - passed
            at += passed
        self._pass(data[begin:at])

    def _is_large(self, data: bytes, at: int, length: int) -> bool:
        is_whole = data[at] == WHOLE_BINARY and not self._is_in_parts
        is_masked = bool(data[at + 1] & MASKED)
        return is_whole and is_masked and LARGE <= length <= self._max_bytes

    def _note_parts(self, first: int) -> None:
        if not first & 0x08:  # control frames come between the parts of a message
            self._is_in_parts = not first & 0x80

    def _fill_large(self, num_bytes: int) -> None:
        assert self._large is not None
        if self._large.fill(num_bytes):
            body, self._large = self._large.body, None
            self._on_large(body)

    def _pass(self, data: bytes) -> None:
        if data:
            self._on_other(data)


def _header(data: bytes, at: int) -> tuple[int | None, int]:
    """Bytes of the header at ``at`` (``None`` while they are not all there), and of its frame."""
    if len(data) < at + 2:
        return None, 0
    code = data[at + 1] & 0x7F
    width = _LENGTHS.get(code, 0)
    size = 2 + width + (4 if data[at + 1] & MASKED else 0)
    if len(data) < at + size:
        return None, 0
    return size, int.from_bytes(data[at + 2 : at + 2 + width], "big") if width else code


class LargeFrames(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """uvicorn's protocol for websockets, with a buffer of ours before it. Decision 0012."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._splitter = FrameSplitter(
            max_bytes=self.config.ws_max_size,
            on_large=lambda body: self.handle_bytes(Frame(Opcode.BINARY, body)),
            on_other=self.data_received,  # uvicorn's; its first call is the handshake, without us
            is_open=lambda: self.conn.state is State.OPEN and not self.close_sent,
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio's: where to receive into."""
        return self._splitter.room()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's: so many bytes came."""
        self._splitter.fill(nbytes)
