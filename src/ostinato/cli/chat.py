"""A chat in the terminal, through a chat service and without a server.

Lines are turns of the user; images and videos are named by path before the turn they belong to. It
knows the service protocol and no model.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ostinato.errors import InputError, Overloaded
from ostinato.serve.openai.contract import (
    ChatMessage,
    ChatService,
    Conversation,
    Delta,
    Media,
    Sampling,
    Text,
)

Write = Callable[[str], object]
"""Writes text as it is, without a line's end."""

HELP = """\
/image PATH   show an image with the next turn
/video PATH   show a video with the next turn
/system TEXT  begin again under this instruction
/clear        begin again
/quit         leave
"""
KINDS: dict[str, Literal["image", "video"]] = {"/image": "image", "/video": "video"}


@dataclass
class Chat:
    """A conversation that goes on. ``shown``: media that wait for the next turn."""

    service: ChatService
    write: Write
    sampling: Sampling
    turns: list[ChatMessage] = field(default_factory=list)
    shown: list[Media] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """One line; false when it is time to leave."""
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word in ("/quit", "/exit"):
            return False
        if word in KINDS:
            self.show(KINDS[word], Path(rest).expanduser())
        elif word == "/clear":
            self.begin_again()
        elif word == "/system":
            self.begin_again(rest)
        elif word == "/help":
            self.write(HELP)
        elif word.startswith("/"):
            self.write(f"{word} is not known; see /help\n")
        elif line.strip():
            self.answer(line.strip())
        return True

    def begin_again(self, instruction: str = "") -> None:
        """Forget everything; ``instruction`` is a system message."""
        self.shown.clear()
        system = ChatMessage("system", (Text(instruction),))
        self.turns[:] = [system] if instruction else []

    def show(self, kind: Literal["image", "video"], path: Path) -> None:
        """Read a file for the next turn."""
        try:
            self.shown.append(Media(kind, path.read_bytes(), str(path)))
        except OSError as error:
            self.write(f"{path}: {error.strerror}\n")

    def answer(self, text: str) -> None:
        """Draw an answer. Ctrl-C ends it; what has come of it stays in the conversation.

        A turn that cannot be served is taken back, with its media.
        """
        question = ChatMessage("user", (*self.shown, Text(text)))
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        prompt = Conversation((*self.turns, question))
        self.shown.clear()
        try:
            submission = self.service.submit(prompt, self.sampling, deltas.put)
        except (InputError, Overloaded) as error:
            self.write(f"{error}\n")
            return
        said: list[str] = []
        is_over = False
        while not is_over:
            try:
                delta = deltas.get()
            except KeyboardInterrupt:
                submission.cancel()
                continue
            self.write(delta.text)
            said.append(delta.text)
            is_over = delta.finish_reason is not None or delta.error is not None
        self.write("\n")
        if delta.error is not None:
            self.write(f"error: {delta.error}\n")
            return
        self.turns += [question, ChatMessage("assistant", (Text("".join(said)),))]


def run_chat(
    service: ChatService,
    lines: Iterable[str],
    write: Write,
    *,
    images: Iterable[Path] = (),
    sampling: Sampling | None = None,
) -> None:
    """Chat until the lines end or ``/quit``. ``images`` are shown with the first turn."""
    chat = Chat(service, write, sampling or service.defaults)
    for path in images:
        chat.show("image", path)
    for line in lines:
        if not chat.take(line):
            return
