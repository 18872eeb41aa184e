"""A request's body -> prompts and sampling. Runs in worker threads: reads media, parses base64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ostinato.errors import InputError, RefusedItem
from ostinato.serve.media import read_url
from ostinato.serve.models import check_model
from ostinato.serve.openai.contract import (
    ChatMessage,
    ChatService,
    Conversation,
    Media,
    Prompt,
    Sampling,
    Text,
)
from ostinato.serve.openai.schemas import (
    INT64,
    Message,
    Part,
    SamplingRequest,
    Url,
    parse_chat,
    parse_completion,
)
from ostinato.serve.openai.settings import ChatSettings
from ostinato.serve.settings import MediaPolicy, ServerSettings

DEFAULT_COMPLETION_TOKENS = 16
DIRECT_FIELDS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "ignore_eos"),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one HTTP request wants. Choice ``i`` answers prompt ``i // num_choices``."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    num_choices: int = 1
    is_stream: bool = False
    has_usage_chunk: bool = False

    def submissions(self) -> Iterable[tuple[Prompt, Sampling]]:
        """One per choice; with a seed, the choices of a prompt have successive ones."""
        for prompt in self.prompts:
            for number in range(self.num_choices):
                seed = self.sampling.seed
                if seed is not None:
                    seed = (seed + number + INT64) % (2 * INT64) - INT64
                yield prompt, replace(self.sampling, seed=seed)


class AskReader:
    """Reads bodies for one service."""

    def __init__(self, service: ChatService, settings: ServerSettings, chat: ChatSettings) -> None:
        self._service = service
        self._settings = settings
        self._chat = chat

    def read_chat(self, body: bytes) -> Ask:
        """``/v1/chat/completions``. Raises ``InputError``."""
        request = parse_chat(body)
        if request.top_logprobs is not None and not request.logprobs:
            raise _refused("top_logprobs", "needs logprobs to be true")
        newer, older = request.max_completion_tokens, request.max_tokens
        if newer is not None and older is not None and newer != older:
            raise _refused("max_tokens", f"is {older}, and max_completion_tokens {newer}")
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        max_tokens = older if newer is None else newer
        ask = self._ask(request, 1, max_tokens=max_tokens, logprobs=logprobs)
        return replace(ask, prompts=(self.conversation(request.messages),))

    def read_completion(self, body: bytes) -> Ask:
        """``/v1/completions``. Raises ``InputError``."""
        request = parse_completion(body)
        max_tokens = request.max_tokens or DEFAULT_COMPLETION_TOKENS
        prompts = _prompts(request.prompt)
        ask = self._ask(request, len(prompts), max_tokens=max_tokens, logprobs=request.logprobs)
        return replace(ask, prompts=prompts)

    def _ask(self, request: SamplingRequest, num_prompts: int, **chosen: Any) -> Ask:
        check_model(request.model, self._service)
        num_choices = request.n or 1
        self._check_count(num_prompts, num_choices)
        if request.stream_options is not None and not request.stream:
            raise _refused("stream_options", "needs stream to be true")
        has_usage_chunk = bool(request.stream_options and request.stream_options.include_usage)
        sampling = replace(sampling_of(request, self._service.defaults), **chosen)
        return Ask((), sampling, num_choices, bool(request.stream), has_usage_chunk)

    def _check_count(self, num_prompts: int, num_choices: int) -> None:
        """More answers than there can ever be room for are no matter of waiting."""
        limit = min(self._chat.max_choices, self._settings.max_queued)
        if num_prompts > limit:
            raise _refused("prompt", f"is a list of {num_prompts}; expected at most {limit}")
        if num_choices * num_prompts > limit:
            each = f" for each of {num_prompts} prompts" if num_prompts > 1 else ""
            most = limit // num_prompts
            raise _refused("n", f"is {num_choices}{each}; expected at most {most}")

    def conversation(self, messages: list[Message], is_answered_next: bool = True) -> Conversation:
        """The messages with the bytes of their media. Raises ``InputError``."""
        count = sum(
            part.type in ("image_url", "video_url")
            for message in messages
            for part in (message.content if isinstance(message.content, list) else ())
        )
        if count > self._settings.max_items:
            raise _refused(
                "messages", f"{count} images and videos, at most {self._settings.max_items}"
            )
        policy = self._settings.media
        turns = [_message(one, f"messages[{i}]", policy) for i, one in enumerate(messages)]
        return Conversation(tuple(turns), is_answered_next)


def sampling_of(request: SamplingRequest, defaults: Sampling) -> Sampling:
    """The checkpoint's sampling with what the request says."""
    given = {name: getattr(request, name) for name in DIRECT_FIELDS}
    if request.top_k is not None:
        given["top_k"] = max(request.top_k, 0)  # vLLM and SGLang say -1 for all
    if request.stop is not None:
        given["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids is not None:
        given["stop_token_ids"] = tuple(request.stop_token_ids)
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt[0], int):
        return (tuple(prompt),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in prompt)


def _message(message: Message, place: str, policy: MediaPolicy) -> ChatMessage:
    # developer is OpenAI's newer name of system
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if content is None:
        raise _refused(f"{place}.content", "is missing; expected text or a list of parts")
    if isinstance(content, str):
        return ChatMessage(role, (Text(content),))
    parts = [_part(part, role, f"{place}.content[{i}]", policy) for i, part in enumerate(content)]
    return ChatMessage(role, tuple(parts))


def _part(part: Part, role: str, place: str, policy: MediaPolicy) -> Text | Media:
    if part.type == "text":
        if part.text is None:
            raise _refused(f"{place}.text", "is missing")
        return Text(part.text)
    if part.type not in ("image_url", "video_url"):
        raise RefusedItem(
            f"{place}.type",
            InputError(
                f"[unsupported-part] {part.type[:80]!r}; expected text, image_url or video_url"
            ),
        )
    if role != "user":
        raise _refused(place, f"a {role} message holds text only")
    url: Url | str | None = getattr(part, part.type)
    if url is None:
        raise _refused(f"{place}.{part.type}", "is missing")
    try:
        content = read_url(url if isinstance(url, str) else url.url, policy)
    except InputError as error:
        raise RefusedItem(f"{place}.{part.type}", error) from None
    kind: Literal["image", "video"] = "image" if part.type == "image_url" else "video"
    if kind == "image" and isinstance(content, list):
        raise _refused(f"{place}.image_url", "holds the frames of a video")
    return Media(kind, content, f"{place}.{part.type}")


def _refused(place: str, why: str) -> RefusedItem:
    return RefusedItem(place, InputError(f"[request] {why}"))
