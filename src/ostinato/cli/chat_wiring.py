"""Joins a loaded chat to a server: the adapter between the OpenAI routes' contract and torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import torch

import ostinato
from ostinato.cli.config import Settings
from ostinato.cli.sglang_chat_flags import WHOLE, ChatFlags
from ostinato.cli.wiring import encoder_numbers
from ostinato.errors import InputError, PromptTooLong, RefusedItem, WeightsError
from ostinato.lm.contract import ChatDelta, SamplingParams
from ostinato.lm.contract import TokenLogprob as EngineLogprob
from ostinato.lm.engine import Ticket
from ostinato.serve.openai.contract import (
    Alternative,
    Conversation,
    Delta,
    Media,
    OnDelta,
    Prompt,
    Sampling,
    Text,
    TokenLogprob,
)
from ostinato.vlm.chat import Chat
from ostinato.weights.config import read_config, read_json
from ostinato.weights.files import find_shipped, open_files

if TYPE_CHECKING:
    from ostinato.kernels.gate import Numerics
    from ostinato.lm.backends import Compiler, Name

CHAT_TYPES = frozenset({"qwen2_5_vl", "qwen3_vl"})


def is_chat(model: str) -> bool:
    """Whether ``model`` can be talked to; reads its configuration only."""
    try:
        shipped = find_shipped(model)
        config = read_config(open_files(model)) if shipped is None else read_json(shipped, model)
    except WeightsError:
        return False  # whoever loads it says what is wrong with it
    return config.get("model_type") in CHAT_TYPES


class ChatAdapter:
    """A chat behind the contract of the OpenAI routes. Everything was recorded on loading."""

    def __init__(self, name: str, chat: Chat) -> None:
        self.name = name
        self._chat = chat

    @property
    def defaults(self) -> Sampling:
        return Sampling(**asdict(self._chat.config.sampling))

    @property
    def max_context_tokens(self) -> int:
        return self._chat.config.max_length

    def warm_up(self) -> None:
        return None

    def failure(self) -> BaseException | None:
        if self._chat.is_serving:
            return None
        return RuntimeError("the thread that draws tokens has ended")

    def submit(self, prompt: Prompt, sampling: Sampling, on_delta: OnDelta) -> Ticket:
        params = SamplingParams(**asdict(sampling))

        def tell(delta: ChatDelta) -> None:
            on_delta(self._delta(delta))

        with _places_of(prompt):
            return self._chat.submit(_given(prompt), params, tell)

    def _delta(self, delta: ChatDelta) -> Delta:
        return Delta(
            text=delta.text,
            token_ids=delta.token_ids,
            logprobs=tuple(self._logprob(one) for one in delta.logprobs or ()),
            finish_reason=delta.finish_reason if delta.error is None else None,
            error=delta.error,
        )

    def _logprob(self, one: EngineLogprob) -> TokenLogprob:
        top = tuple(Alternative(*self._token(i), logprob) for i, logprob in one.top)
        return TokenLogprob(*self._token(one.token_id), one.logprob, top)

    def _token(self, token_id: int) -> tuple[str, bytes]:
        raw = self._chat.token_bytes(token_id)
        return raw.decode(errors="replace"), raw

    def tokenize(self, prompt: Prompt, *, adds_special: bool = False) -> Sequence[int]:
        with _places_of(prompt):
            return self._chat.tokenize(_given(prompt), adds_special=adds_special)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._chat.detokenize(token_ids)

    def token_strs(self, token_ids: Sequence[int]) -> Sequence[str]:
        return [self._chat.token_str(token_id) for token_id in token_ids]

    def describe(self) -> Mapping[str, Any]:
        config = self._chat.config
        return {
            "model_type": config.model_type,
            "max_model_len": config.max_length,
            "vocabulary": config.lm.num_tokens,
        }

    def snapshot(self) -> Mapping[str, float]:
        stats = self._chat.stats()
        engine = stats.engine
        recorded = [stats.encoder, *engine.recordings.values()]
        return {
            "num_running": engine.num_running,
            "num_waiting": engine.num_waiting,
            "cache_usage": 1 - engine.num_free_pages / max(engine.num_pages, 1),
            "prefix_cache_queries": engine.looked_up_tokens,
            "prefix_cache_hits": engine.cached_tokens,
            "num_preemptions": engine.num_preempted,
            "recordings": sum(one.num_recordings for one in recorded),
            "recorded_bytes": stats.encoder.device_bytes_held,
            **encoder_numbers(stats.encoder),
        }

    def events(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._chat.close()


def _given(prompt: Prompt) -> object:
    """What ``Chat`` takes: messages, a text or token ids. Its template always opens the answer:
    ``RefusedItem`` for a conversation that should end before.
    """
    if not isinstance(prompt, Conversation):
        return prompt
    if not prompt.is_answered_next:
        why = "[request] is false; expected true, which the template does"
        raise RefusedItem("add_generation_prompt", InputError(why))
    return [
        {"role": message.role, "content": [_part(part) for part in message.parts]}
        for message in prompt.messages
    ]


@contextmanager
def _places_of(prompt: Prompt) -> Iterator[None]:
    """Errors name the field of the request, where the chat's own name its messages' parts."""
    field = "messages" if isinstance(prompt, Conversation) else "prompt"
    try:
        yield
    except RefusedItem as refused:
        raise RefusedItem(_place(prompt, refused.place), refused.cause) from refused
    except PromptTooLong as refused:
        raise PromptTooLong(str(refused), place=field) from refused
    except InputError as refused:
        raise RefusedItem(field, refused) from refused


def _place(prompt: Prompt, own: str) -> str:
    if not isinstance(prompt, Conversation):
        return "prompt"
    for i, message in enumerate(prompt.messages):
        for j, part in enumerate(message.parts):
            here = f"messages[{i}].content[{j}]"
            if isinstance(part, Media):
                if own == f"{here}.{part.kind}":
                    return part.place
            elif own == here:  # a text alone may have come without a list around it
                return here if len(message.parts) > 1 else f"messages[{i}].content"
    return own


def _part(part: Text | Media) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": part.kind, part.kind: part.content}


def load_chat_service(
    model: str, settings: Settings, flags: ChatFlags | None = None, *, device: str
) -> ChatAdapter:
    """The service for a chat: loaded and recorded."""
    flags = flags or ChatFlags()
    chosen = settings.encoder
    is_whole = flags.chunk_tokens == WHOLE
    most = max([0, *flags.decode_rungs, flags.max_decode or 0, flags.max_running or 0])
    wished = [flags.chunk_tokens or 0, *flags.prefill_rungs]
    if device != "cpu":  # there a prefill of thousands of tokens is nothing to record
        wished.append(flags.max_prefill_tokens or 0)
    largest = max(wished)
    graph = ostinato.GraphConfig(
        mode="auto" if settings.is_recording_on else "off",
        budget_bytes=chosen.budget_bytes,
        ladder_ratio=chosen.ladder_ratio,
        cache_dir=settings.cache_on(device),
    )
    options: dict[str, Any] = {}
    if flags.memory_fraction is not None:
        options["mem_fraction_static"] = flags.memory_fraction
    chat = ostinato.load_chat(
        model,
        device=device,
        dtype=None if chosen.dtype is None else getattr(torch, chosen.dtype),
        graph=graph,
        numerics=cast("Numerics", chosen.numerics),
        max_batch=most or None,
        max_chunk=WHOLE if is_whole else largest or None,
        max_length=flags.context_tokens,
        max_waiting=settings.server.max_queued,
        decode_rungs=_up_to(flags.decode_rungs, most),
        prefill_rungs=_up_to(flags.prefill_rungs, largest),
        prefill_backend=cast("Name | None", flags.prefill_backend),
        prefill_compiler=cast("Compiler", flags.compiler or "eager"),
        is_prefix_cache_on=flags.is_prefix_cache_on,
        top_patches=chosen.top_patches,
        workers=chosen.num_workers,
        **options,
    )
    return ChatAdapter(settings.served_name or model, chat)


def _up_to(rungs: tuple[int, ...], top: int) -> tuple[int, ...] | None:
    """Rungs that end at ``top``; ``None`` where none are named: the library's own."""
    return tuple(sorted({*rungs, top})) if rungs else None
