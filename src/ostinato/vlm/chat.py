"""A vision-language model to talk to: from messages to replies, from any thread."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ostinato.errors import ConfigError, InputError, Overloaded
from ostinato.lm.contract import (
    ChatDelta,
    FinishReason,
    LmConfig,
    Media,
    OnDelta,
    Prompt,
    SamplingParams,
    TokenLogprob,
)
from ostinato.lm.engine import Engine, EngineStats, Ticket
from ostinato.lm.text import TextStream
from ostinato.recording.stats import Stats
from ostinato.vision.contract import VisionConfig
from ostinato.vision.encoder import Encoder
from ostinato.vlm.prompt import Assembler
from ostinato.weights.chat_tokenizer import ChatTokenizer


@dataclass(frozen=True)
class ChatConfig:
    """``max_length``: tokens of a prompt and its reply together. ``sampling``: what a request
    gets that does not say how its reply is drawn, from ``generation_config.json``.
    """

    model: str
    model_type: str
    max_length: int
    lm: LmConfig
    vision: VisionConfig
    eos_ids: frozenset[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True)
class ChatResult:
    """A whole reply. ``logprobs``: one for each token, where they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    image_tokens: int
    completion_tokens: int
    cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True)
class ChatStats:
    """``engine``: requests, pages, tokens, steps; ``encoder``: how images were served."""

    engine: EngineStats
    encoder: Stats


def sampling_params(defaults: SamplingParams, **sampling: Any) -> SamplingParams:
    """``defaults`` with what the keywords say; ``stop`` may be one string. ``ConfigError`` for a
    name that there is not.
    """
    stop = sampling.get("stop", ())
    sampling["stop"] = (stop,) if isinstance(stop, str) else tuple(stop or ())
    sampling["stop_token_ids"] = tuple(sampling.get("stop_token_ids") or ())
    known = SamplingParams.__dataclass_fields__
    for name in sampling:
        if name not in known:
            raise ConfigError(f"no sampling parameter {name!r}; expected {', '.join(known)}")
    return replace(defaults, **sampling)


class Chat:
    """Made by ``load_chat``. ``close`` it, or use it in a ``with``."""

    def __init__(
        self,
        config: ChatConfig,
        engine: Engine,
        encoder: Encoder,
        assembler: Assembler,
        tokenizer: ChatTokenizer,
    ) -> None:
        self.config = config
        self._engine = engine
        self._encoder = encoder
        self._assembler = assembler
        self._tokenizer = tokenizer
        self._is_closed = False

    def submit(
        self,
        messages_or_prompt: object,
        sampling: SamplingParams,
        on_delta: OnDelta,
    ) -> Ticket:
        """Take a chat (a list of messages), a text, token ids or a ``Prompt``.

        Images are prepared on the caller's thread; ``on_delta`` is called on the engine's thread
        and must not wait. Raises ``InputError`` for what cannot be served, ``Overloaded`` when the
        queue is full or the chat is closed.
        """
        if self._is_closed:
            raise Overloaded("the chat is closed", retry_after_s=1)
        prompt = self._prompt(messages_or_prompt)
        text = TextStream(self._tokenizer.decode, sampling.stop)
        return self._engine.submit(prompt, sampling, text, on_delta)

    def stream(self, messages: object, **sampling: Any) -> Iterator[ChatDelta]:
        """Pieces of a reply as they come; a reply that is no longer read is cancelled.

        The request is taken at once, before the first piece is asked for.
        """
        deltas, _ = self._start(messages, sampling)
        return deltas

    def generate(self, messages: object, **sampling: Any) -> ChatResult:
        """A whole reply; keywords are those of ``SamplingParams``, and what they do not say is as
        the checkpoint says.
        """
        deltas, ticket = self._start(messages, sampling)
        got = list(deltas)
        ids = tuple(token for delta in got for token in delta.token_ids)
        reason = got[-1].finish_reason
        assert reason is not None
        logprobs = None
        if got[0].logprobs is not None:
            logprobs = tuple(one for delta in got for one in delta.logprobs or ())
        return ChatResult(
            text="".join(delta.text for delta in got),
            token_ids=ids,
            finish_reason=reason,
            prompt_tokens=ticket.prompt_tokens,
            image_tokens=ticket.image_tokens,
            completion_tokens=len(ids),
            cached_tokens=ticket.cached_tokens,
            logprobs=logprobs,
        )

    def _start(
        self, messages: object, sampling: dict[str, Any]
    ) -> tuple[Iterator[ChatDelta], Ticket]:
        deltas: queue.SimpleQueue[ChatDelta] = queue.SimpleQueue()
        ticket = self.submit(
            messages, sampling_params(self.config.sampling, **sampling), deltas.put
        )

        def read() -> Iterator[ChatDelta]:
            try:
                while True:
                    delta = deltas.get()
                    if delta.error is not None:
                        raise delta.error
                    yield delta
                    if delta.finish_reason is not None:
                        return
            finally:
                ticket.cancel()

        return read(), ticket

    def tokenize(self, messages: object, *, adds_special: bool = False) -> list[int]:
        """Token ids of a chat (placeholders expanded) or of a text; ``adds_special``: a text's with
        the tokens that the tokenizer puts around one, which Qwen's does not.
        """
        if adds_special and isinstance(messages, str):
            return list(self._assembler.of_text(messages, adds_special=True).token_ids)
        return list(self._prompt(messages).token_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens by their names; ``InputError`` for an id that the
        model does not have.
        """
        for token_id in token_ids:
            self._check_id(token_id)
        return self._tokenizer.decode(token_ids, has_special=True)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, which may be half a letter."""
        self._check_id(token_id)
        return self._tokenizer.token_bytes(token_id)

    def token_str(self, token_id: int) -> str:
        """How the vocabulary writes one token."""
        self._check_id(token_id)
        return self._tokenizer.token_str(token_id)

    def _check_id(self, token_id: int) -> None:
        if type(token_id) is not int or not 0 <= token_id < self.config.lm.num_tokens:
            raise InputError(
                f"token id {token_id!r}; expected 0 to {self.config.lm.num_tokens - 1}"
            )

    def _prompt(self, given: object) -> Prompt:
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            return self._assembler.of_text(given)
        if isinstance(given, Sequence) and given and isinstance(given[0], int):
            for token_id in given:
                self._check_id(token_id)
            return self._assembler.of_ids(given)
        return self._assembler.of_messages(given)

    @property
    def is_serving(self) -> bool:
        """True while requests are taken."""
        return self._engine.is_serving

    def stats(self) -> ChatStats:
        """A snapshot; any thread."""
        return ChatStats(self._engine.stats(), self._encoder.stats())

    def close(self) -> None:
        """Cancel what is under way and free everything. Twice is allowed."""
        self._is_closed = True
        self._engine.close()
        self._encoder.close()

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def encode_media(encoder: Encoder, media: Sequence[Media]) -> None:
    """Give each its rows and its route: one encoder call for the media of several requests."""
    with torch.inference_mode():
        for one, encoded in zip(
            media, encoder.encode_items([m.source for m in media]), strict=True
        ):
            one.rows, one.route = encoded.packed, encoded.route.route
