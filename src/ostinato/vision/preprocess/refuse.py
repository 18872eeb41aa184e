"""One way to refuse an image or video: ``[rule] what was wrong, with the value``.

Rules are short stable names, so that a server can count them and a test can match them.
"""

from __future__ import annotations

from ostinato.errors import InputError


def refuse(rule: str, text: str) -> InputError:
    """The error to raise for input that breaks ``rule``."""
    return InputError(f"[{rule}] {text}")
