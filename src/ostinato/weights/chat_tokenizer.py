"""Chats to text and token ids: a checkpoint's own tokenizer and template, or bytes for the shipped
tiny models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ostinato.errors import InputError, WeightsError
from ostinato.weights.config import read_config, read_generation_config, read_json
from ostinato.weights.files import Files

Message = Mapping[str, Any]
"""``role`` and ``content``: a string, or parts of ``type`` text, image or video."""


class ChatTokenizer(Protocol):
    """Special tokens are recognised in text; where ids are decoded they are left out unless they
    are asked for.
    """

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a reply."""

    def render(self, messages: Sequence[Message]) -> str:
        """The chat as the model has seen chats, the answer's opening at the end."""

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Ids of a text; ``adds_special``: with the tokens that the tokenizer puts around one."""

    def decode(self, token_ids: Sequence[int], *, has_special: bool = False) -> str:
        """Text of ids; ``has_special``: with special tokens, by their names."""

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for; special tokens by their names, empty beyond the last."""

    def token_str(self, token_id: int) -> str:
        """How the vocabulary writes a token (a byte that cannot be printed as a letter that can);
        empty beyond the last.
        """


class ByteChatTokenizer:
    """Every byte is a token; special tokens follow from 256. The template is Qwen's."""

    specials = (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|image_pad|>",
        "<|video_pad|>",
    )
    eos_ids = frozenset({256, 258})
    _split = re.compile("(" + "|".join(map(re.escape, specials)) + ")")

    def render(self, messages: Sequence[Message]) -> str:
        turns = [f"<|im_start|>{m['role']}\n{_as_text(m)}<|im_end|>\n" for m in messages]
        return "".join(turns) + "<|im_start|>assistant\n"

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        ids: list[int] = []  # as Qwen's tokenizers, it puts none around a text
        for i, piece in enumerate(self._split.split(text)):
            ids += [256 + self.specials.index(piece)] if i % 2 else piece.encode()
        return ids

    def decode(self, token_ids: Sequence[int], *, has_special: bool = False) -> str:
        shown = [i for i in token_ids if has_special or i < 256]
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        place = token_id - 256
        return self.specials[place].encode() if place < len(self.specials) else b""

    def token_str(self, token_id: int) -> str:
        if token_id < 256:
            return _letters_of_bytes()[token_id]
        return self.token_bytes(token_id).decode()


def _as_text(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    media = {k: f"<|vision_start|><|{k}_pad|><|vision_end|>" for k in ("image", "video")}
    return "".join(media.get(part["type"]) or part["text"] for part in content)


class PublishedChatTokenizer:
    """The tokenizer and chat template of a checkpoint. Raises ``WeightsError`` without them."""

    def __init__(self, model: str | Path, files: Files) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(model))
        except (OSError, ValueError) as error:
            raise WeightsError(f"{model}: the tokenizer cannot be read: {error}") from error
        self._template = _template(files) or self._tokenizer.chat_template
        if not self._template:
            raise WeightsError(f"{model}: no chat template in the tokenizer or chat_template.json")
        self.eos_ids = _eos_ids(files) | (frozenset({self._tokenizer.eos_token_id}) - {None})

    def render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise InputError(f"the chat template refuses these messages: {error}") from error
        return text

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=adds_special)["input_ids"])

    def decode(self, token_ids: Sequence[int], *, has_special: bool = False) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=not has_special, clean_up_tokenization_spaces=False
        )
        return text

    def token_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        letters = _bytes_of_letters()
        if token_id in self._tokenizer.added_tokens_decoder or not set(token) <= letters.keys():
            return str(token).encode()
        return bytes(letters[letter] for letter in token)

    def token_str(self, token_id: int) -> str:
        return self._tokenizer.convert_ids_to_tokens(token_id) or ""


@cache
def _bytes_of_letters() -> dict[str, int]:
    """Byte-level tokenizers write each byte as a letter that can be printed (GPT-2's table)."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    named = {chr(byte): byte for byte in printed}
    return named | {chr(256 + place): byte for place, byte in enumerate(others)}


@cache
def _letters_of_bytes() -> dict[int, str]:
    return {byte: letter for letter, byte in _bytes_of_letters().items()}


def _template(files: Files) -> str | None:
    """A processor's own template goes before the tokenizer's, which may know no images."""
    jinja = files.find("chat_template.jinja")
    if jinja is not None:
        return jinja.read_text(encoding="utf-8")
    path = files.find("chat_template.json")
    if path is None:
        return None
    template = read_json(path, f"{files.origin}: chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def _eos_ids(files: Files) -> frozenset[int]:
    """Of ``generation_config.json``; without that file, of ``config.json``."""
    found = read_generation_config(files)
    if found is None and files.find("config.json") is not None:
        config = read_config(files)
        found = config | (config.get("text_config") or {})
    ids = (found or {}).get("eos_token_id")
    return frozenset(i for i in (ids if isinstance(ids, list) else [ids]) if type(i) is int)
