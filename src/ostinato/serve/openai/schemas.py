"""What the routes accept: OpenAI's requests, with vLLM's and SGLang's further sampling fields.

``None`` everywhere is what a field means where it is not sent. Importable without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json

from ostinato.errors import InputError, RefusedItem
from ostinato.serve.openai.fields import CHAT, COMPLETION, Rule, take_unused

INT64 = 1 << 63
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Flag = bool | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    """``include_obfuscation`` pads chunks; that is not done."""

    include_usage: Flag = None
    include_obfuscation: Literal[False] | None = None


class SamplingRequest(_Strict):
    """Fields that both kinds of completion share."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=1e-9, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=10)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: Flag = None
    n: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    stream: Flag = None
    stream_options: StreamOptions | None = None


class Url(_Strict):
    """Where an image or a video is: a data URL, or what the server's flags allow."""

    url: str
    detail: Literal["auto", "high", "original"] | None = None


class Part(_Strict):
    """One part of a message; ``type`` says which of the others is there."""

    type: str
    text: str | None = None
    image_url: Url | str | None = None
    video_url: Url | str | None = None


class Message(_Strict):
    """A turn. ``name`` is accepted; published templates have no place for it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: list[Part] | str | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None


class ChatRequest(SamplingRequest):
    """The body of ``/v1/chat/completions``, less what ``fields.py`` takes out."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    logprobs: Flag = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class CompletionRequest(SamplingRequest):
    """The body of ``/v1/completions``, less what ``fields.py`` takes out."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class TokenizeRequest(_Strict):
    """vLLM's. Exactly one of ``prompt`` and ``messages``.

    ``add_special_tokens``: of a prompt's ids; messages get what the template writes.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: Flag = None
    return_token_strs: Flag = None


class DetokenizeRequest(_Strict):
    """vLLM's."""

    model: str | None = None
    tokens: list[TokenId]


Body = TypeVar("Body", bound=BaseModel)


def parse_chat(body: bytes) -> ChatRequest:
    """Raises ``RefusedItem`` that names the field."""
    return parse(body, ChatRequest, CHAT)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises ``RefusedItem`` that names the field."""
    return parse(body, CompletionRequest, COMPLETION)


def parse(body: bytes, kind: type[Body], rules: Mapping[str, Rule] | None = None) -> Body:
    """A body as ``kind``; ``RefusedItem`` names the field that is wrong."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"[json] the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"[json] the body is a {type(fields).__name__}; expected an object")
    try:
        return kind.model_validate(take_unused(fields, rules or {}))
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> RefusedItem:
    """One sentence about the error that lies deepest: of the forms that a value may have, that is
    the one which it nearly had.
    """
    found = error.errors(include_url=False, include_context=False)
    worst = max(found, key=_nearness)
    place = place_of(worst["loc"]) or "body"
    if worst["type"] == "extra_forbidden":
        parent, name = place_of(worst["loc"][:-1]), str(worst["loc"][-1])[:100]
        place = f"{parent}.{name}" if parent else name
        return RefusedItem(place, InputError("[unknown-field] there is no such field"))
    why = worst["msg"]
    if _is_form(worst):
        alike = [one for one in found if (place_of(one["loc"]), _is_form(one)) == (place, True)]
        forms = dict.fromkeys(_OBJECT.get(one["type"], one["msg"]) for one in alike)
        why = " or ".join(forms).replace(" or Input should be", " or")
    if worst["type"] not in _TELLING:
        why += f"; it is {_as_said(worst['input'])}"
    return RefusedItem(place, InputError(f"[request] {why}"))


_OBJECT = {"model_type": "Input should be an object"}
_TELLING = frozenset({"missing", "too_long", "too_short"})
"""Their messages say what was there."""


def _nearness(error: ErrorDetails) -> tuple[int, bool, bool]:
    """Deeper is nearer; in one place a value out of bounds is nearer than one of another form, and
    a field that there is not is named where nothing else is wrong.
    """
    depth = len(_steps_of(error["loc"]))
    return depth, error["type"] != "extra_forbidden", not _is_form(error)


def _is_form(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _as_said(value: Any) -> str:
    """As JSON, where that is short."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    return json.dumps(value[:80] + "..." if isinstance(value, str) and len(value) > 80 else value)


_TYPE_TAGS = frozenset({"str", "int", "Url", "constrained-str"})


def _steps_of(loc: tuple[int | str, ...]) -> list[int | str]:
    """Without pydantic's names of types."""
    return [s for s in loc if isinstance(s, int) or (s not in _TYPE_TAGS and "[" not in s)]


def place_of(loc: tuple[int | str, ...]) -> str:
    """``messages[0].content[1].type``."""
    place = ""
    for step in _steps_of(loc):
        if isinstance(step, int):
            place += f"[{step}]"
        else:
            place += f".{step}" if place else step[:100]
    return place
