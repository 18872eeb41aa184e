"""Token ids to text, piece by piece: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"


class TextStream:
    """``decode`` turns ids into text, special tokens left out; ``stop``: strings that end it."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: tuple[str, ...] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._ids: list[int] = []
        self._before = 0
        """Where the ids begin that are decoded again, since a token's text may depend on the one
        before it."""
        self._read = 0
        self._held = ""
        self.is_stopped = False

    def push(self, token_id: int) -> str:
        """The text that a token adds; ``is_stopped`` afterwards if a stop string was reached."""
        self._ids.append(token_id)
        if not self._take_new(allows_incomplete=False):
            return ""
        places = [at for at in map(self._held.find, self._stop) if at >= 0]
        if places:
            self.is_stopped = True
            text, self._held = self._held[: min(places)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        return text

    def finish(self) -> str:
        """What was held back, when no token follows."""
        if self.is_stopped:
            return ""
        self._take_new(allows_incomplete=True)
        return self._held

    def _take_new(self, *, allows_incomplete: bool) -> bool:
        old = self._decode(self._ids[self._before : self._read])
        new = self._decode(self._ids[self._before :])
        if new.endswith(_INCOMPLETE) and not allows_incomplete:
            return False
        self._held += new[len(old) :]
        self._before, self._read = self._read, len(self._ids)
        return True


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
