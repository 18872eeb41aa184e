"""Messages as callers write them (OpenAI's parts and Qwen's) to what a template takes, with the
images and videos in order.

Nothing is fetched: a URL must be a data URL.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from ostinato.errors import InputError, RefusedItem
from ostinato.vision.preprocess import ImageItem, ImageOptions, VideoItem, VideoOptions

Item = ImageItem | VideoItem
PLACEHOLDERS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
_IMAGE = ("min_pixels", "max_pixels", "channels")
_VIDEO = (*_IMAGE, "fps", "num_frames", "min_frames", "max_frames", "source_fps")


@dataclass(frozen=True)
class Shown:
    """An image or a video, and where it stands: ``messages[0].content[1].image``."""

    item: Item
    place: str


def read_messages(messages: object) -> tuple[list[dict[str, Any]], list[Shown]]:
    """Messages whose media are bare placeholders, and the media. ``InputError`` says what is
    wrong; ``RefusedItem`` where a text or a medium is.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InputError(f"messages is a {type(messages).__name__}; expected a list of at least 1")
    read: list[dict[str, Any]] = []
    items: list[Shown] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f"{where} is {message!r:.80}; expected an object with a role")
        content = message.get("content")
        if content is None or isinstance(content, str):
            text = content or ""
            check_text(text, where)
            read.append({"role": message["role"], "content": text})
            continue
        if not isinstance(content, Sequence):
            raise InputError(f"{where}.content is a {type(content).__name__}; expected text, parts")
        parts = [_part(part, f"{where}.content[{j}]", items) for j, part in enumerate(content)]
        read.append({"role": message["role"], "content": parts})
    return read, items


def check_text(text: str, where: str) -> None:
    """Text must be text, and must not pass for an image."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedItem(where, InputError(f"no Unicode text: {error}")) from None
    for placeholder in PLACEHOLDERS.values():
        if placeholder in text:
            raise RefusedItem(where, InputError(f"{placeholder} stands for media only"))


def _part(part: object, where: str, items: list[Shown]) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise InputError(f"{where} is {part!r:.80}; expected an object")
    kind = part.get("type")
    if kind == "text":
        text = part.get("text")
        if not isinstance(text, str):
            raise InputError(f"{where}.text is a {type(text).__name__}; expected a string")
        check_text(text, where)
        return {"type": "text", "text": text}
    for name in ("image", "video"):
        if kind in (name, f"{name}_url"):
            place = f"{where}.{kind}"
            try:
                items.append(Shown(_item(name, str(kind), part), place))
            except InputError as error:
                raise RefusedItem(place, error) from None
            return {"type": name}
    raise InputError(f"{where}.type is {kind!r}; expected text, image, video or their _url")


def _item(name: str, kind: str, part: Mapping[Any, Any]) -> Item:
    source = part.get(kind)
    if kind.endswith("_url"):
        url = source.get("url") if isinstance(source, Mapping) else source
        if not isinstance(url, str) or not url.startswith("data:"):
            raise InputError(f"{url!r:.40}; expected a data URL")
        source = url
    if source is None:
        raise InputError("is missing")
    if isinstance(source, str) and source.startswith("data:"):
        source = _data(source)
    known = _IMAGE if name == "image" else _VIDEO
    options = {key: part[key] for key in known if part.get(key) is not None}
    if name == "image":
        return ImageItem(source, ImageOptions(**options))
    return VideoItem(source, VideoOptions(**options))


def _data(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma:
        raise InputError("the data URL has no comma")
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"the data URL is no base64: {error}") from error
