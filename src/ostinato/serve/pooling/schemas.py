"""What ``POST /pooling`` accepts: vLLM's request, as far as a vision tower has a meaning for it.

Fields that would change an answer and have no meaning here are refused by name; fields that say
nothing to an encoder (``user``, ``priority``) are accepted. Importable without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostinato.errors import InputError

EmbedDType = Literal["float32", "float16", "bfloat16"]
Encoding = Literal["float", "base64", "bytes"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Url(_Strict):
    """Where the content is: a data URL, or what the server's flags allow."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class Part(_Strict):
    """One image or video of a message or of ``input``."""

    type: str
    image_url: Url | str | None = None
    video_url: Url | str | None = None
    text: str | None = None
    uuid: str | None = None


class Message(_Strict):
    """A chat message; only its images and videos count."""

    role: str
    content: list[Part] | str
    name: str | None = None


class ProcessorOptions(_Strict):
    """How images and videos are resized and sampled; ``None``: the checkpoint's value."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None


class PoolingRequest(_Strict):
    """The body. Exactly one of ``messages`` and ``input``."""

    model: str | None = None
    task: str | None = None
    messages: list[Message] | None = None
    input: list[Part | str] | Part | str | None = None
    encoding_format: Encoding = "float"
    embed_dtype: EmbedDType = "float32"
    endianness: Literal["native", "little", "big"] = "native"
    mm_processor_kwargs: ProcessorOptions = Field(default_factory=ProcessorOptions)
    stage_times: bool = False
    # accepted, and without a meaning for an encoder
    user: str | None = None
    priority: int = 0
    request_id: str | None = None
    # accepted only where they ask for nothing
    dimensions: None = None
    normalize: Literal[False] | None = None
    use_activation: Literal[False] | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """One image or video that a request names. ``place`` is where it stands in the body."""

    kind: Literal["image", "video"]
    url: str
    place: str


def parse_request(body: bytes) -> PoolingRequest:
    """The request in a body; ``InputError`` names the field that is wrong."""
    try:
        return PoolingRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "the body"
        raise InputError(f"[request] {place}: {first['msg']}") from None


def check_task(request: PoolingRequest) -> None:
    """Refuse what a matrix per image cannot be."""
    if request.task not in (None, "token_embed"):
        raise InputError(
            f"[task] task is {request.task!r}; a vision tower gives one matrix per image or video, "
            "so only task 'token_embed' can be answered"
        )
    if (request.messages is None) == (request.input is None):
        raise InputError("[request] give either messages or input")


def find_media(request: PoolingRequest, max_items: int) -> list[Media]:
    """The images and videos in the order in which they stand; at least one."""
    found = list(_media(request))
    if not found:
        raise InputError("[no-media] the request holds no image_url and no video_url")
    if len(found) > max_items:
        raise InputError(f"[max-items] {len(found)} images and videos, at most {max_items}")
    return found


def _media(request: PoolingRequest) -> Iterator[Media]:
    for i, message in enumerate(request.messages or ()):
        yield from _of_parts(message.content, f"messages[{i}].content")
    if request.input is not None:
        yield from _of_parts(request.input, "input")


def _of_parts(parts: list[Part] | list[Part | str] | Part | str, place: str) -> Iterator[Media]:
    if not isinstance(parts, list):
        yield _of_part(parts, place)
        return
    for i, part in enumerate(parts):
        yield _of_part(part, f"{place}[{i}]")


def _of_part(part: Part | str, place: str) -> Media:
    if isinstance(part, str) or part.type == "text":
        raise InputError(
            f"[text] {place} is text, and a vision tower has none; send image_url and video_url "
            "parts only"
        )
    if part.type not in ("image_url", "video_url"):
        raise InputError(f"[part] {place}.type is {part.type!r}; expected image_url or video_url")
    url: Url | str | None = getattr(part, part.type)
    if url is None:
        raise InputError(f"[part] {place} has type {part.type} and no {part.type}")
    kind: Literal["image", "video"] = "image" if part.type == "image_url" else "video"
    return Media(kind, url if isinstance(url, str) else url.url, f"{place}.{part.type}")


def options_of(request: PoolingRequest) -> dict[str, Any]:
    """The processing options that were given, as plain values."""
    return request.mm_processor_kwargs.model_dump(exclude_none=True)


def dumps(value: Any) -> bytes:
    """Compact JSON; never ``NaN``."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
