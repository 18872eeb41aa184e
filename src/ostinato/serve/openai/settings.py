"""What a chat server needs to know besides ``serve.settings``, resolved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """``max_choices``: most answers (``n`` times prompts) of one request. ``drain_s``: how long a
    stopping server waits for the answers under way.
    """

    max_choices: int = 64
    drain_s: float = 60.0
