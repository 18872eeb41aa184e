"""A stream of frames, cut anywhere, gives the messages that ``websockets`` reads out of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from ostinato.serve.large_frames import LARGE, FrameSplitter

MAX_BYTES = 4 * LARGE


class Sink:
    """A server's side behind a splitter, or without one; what it read, in order."""

    def __init__(self, *, is_split: bool = True) -> None:
        self.conn = ServerProtocol(max_size=MAX_BYTES)
        client = ClientProtocol(parse_uri("ws://a/"))
        client.send_request(client.connect())
        self.conn.receive_data(b"".join(client.data_to_send()))
        (request,) = self.conn.events_received()
        self.conn.send_response(self.conn.accept(request))  # type: ignore[arg-type]
        self.seen: list[tuple[Opcode, bool, bytes]] = []
        self.num_large = 0
        self.splitter = FrameSplitter(
            max_bytes=MAX_BYTES,
            on_large=self.take_large,
            on_other=self.take_other,
            is_open=lambda: self.conn.state is State.OPEN,
        )
        self.feed: Callable[[bytes], None] = self.feed_split if is_split else self.take_other

    def take_large(self, body: memoryview) -> None:
        assert body.readonly
        self.num_large += 1
        self.seen.append((Opcode.BINARY, True, bytes(body)))

    def take_other(self, data: bytes) -> None:
        self.conn.receive_data(data)
        frames = [event for event in self.conn.events_received() if isinstance(event, Frame)]
        self.seen += [(frame.opcode, frame.fin, bytes(frame.data)) for frame in frames]

    def feed_split(self, data: bytes) -> None:
        while data:
            room = self.splitter.room()
            assert len(room)
            taken = data[: len(room)]
            room[: len(taken)] = taken
            self.splitter.fill(len(taken))
            data = data[len(taken) :]


def payload(num_bytes: int) -> bytes:
    return bytes(i * 7 & 0xFF for i in range(251)) * (num_bytes // 251 + 1)


def frame(opcode: Opcode, num_bytes: int, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, payload(num_bytes)[:num_bytes], fin).serialize(mask=mask)


SIZES = st.sampled_from(
    [0, 1, 125, 126, 65535, LARGE, LARGE + 1, LARGE + 7, 2 * LARGE + 3, MAX_BYTES, MAX_BYTES + 1]
)
FRAMES = st.one_of(
    st.builds(frame, st.just(Opcode.BINARY), SIZES),
    st.builds(frame, st.sampled_from([Opcode.BINARY, Opcode.CONT]), SIZES, fin=st.booleans()),
    st.builds(frame, st.sampled_from([Opcode.PING, Opcode.PONG]), st.integers(0, 125)),
    st.just(frame(Opcode.BINARY, LARGE, mask=False)),
    st.just(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True)),
    st.binary(min_size=1, max_size=20),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(1, 3 * LARGE), min_size=1, max_size=8))
def test_the_same_messages_as_without(frames: list[bytes], steps: list[int]) -> None:
    stream = b"".join(frames) + bytes(14)  # the last header is whole, whatever it is
    ours, plain = Sink(), Sink(is_split=False)
    at, turn = 0, 0
    while at < len(stream):
        step = steps[turn % len(steps)]
        ours.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    plain.feed(stream)
    assert ours.seen == plain.seen
    assert ours.conn.state is plain.conn.state
    assert str(ours.conn.parser_exc) == str(plain.conn.parser_exc)


@pytest.mark.parametrize("step", [1, 2, 13, 14, 15, LARGE])
def test_whole_binary_frames_are_taken_and_others_pass(step: int) -> None:
    num_bytes = LARGE + 5
    stream = frame(Opcode.PING, 3) + frame(Opcode.BINARY, num_bytes) + frame(Opcode.BINARY, 10)
    stream += frame(Opcode.BINARY, num_bytes, fin=False) + frame(Opcode.CONT, num_bytes)
    stream += frame(Opcode.BINARY, num_bytes)
    sink = Sink()
    for at in range(0, len(stream), step):
        sink.feed(stream[at : at + step])
    assert sink.num_large == 2
    sizes = [len(data) for _, _, data in sink.seen]
    assert sizes == [3, num_bytes, 10, num_bytes, num_bytes, num_bytes]


def test_two_messages_do_not_share_memory() -> None:
    bodies: list[memoryview] = []
    sink = Sink()
    sink.splitter._on_large = bodies.append
    for num_bytes in (LARGE, LARGE + 1):
        sink.feed(frame(Opcode.BINARY, num_bytes))
    assert [bytes(body) for body in bodies] == [
        payload(LARGE)[:LARGE],
        payload(LARGE)[: LARGE + 1],
    ]
