"""Text that comes piece by piece is the text of all ids, without halves of characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.lm.text import TextStream
from tests.lm.engines import decode_bytes


@given(st.text(max_size=30))
def test_pieces_join_to_the_whole_and_are_whole_characters(text: str) -> None:
    stream = TextStream(decode_bytes)
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "".join(pieces) + stream.finish() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_nothing_of_a_stop_string_is_ever_shown(text: str, stop: list[str]) -> None:
    stream, shown = TextStream(decode_bytes, tuple(stop)), ""
    for end, byte in enumerate(text.encode(), 1):
        shown += stream.push(byte)
        places = [text[:end].find(s) for s in stop if s in text[:end]]
        assert stream.is_stopped == bool(places)
        if places:
            assert shown == text[: min(places)]
            return
    assert shown + stream.finish() == text


def test_a_broken_character_shows_at_the_end_only() -> None:
    stream = TextStream(decode_bytes)
    assert stream.push("ä".encode()[0]) == ""
    assert stream.finish() == "\ufffd"
