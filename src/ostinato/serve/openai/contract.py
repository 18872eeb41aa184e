"""What a served chat model declares and does: plain values, no tensor, no socket.

Conversations go in with their images and videos as the bytes that were sent; text comes out in
deltas. Templates, tokens, stop strings and sampling are the service's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ostinato.serve.media import Content
from ostinato.serve.service import Served

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text part of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a video, encoded as it was sent; a list holds the frames of a video.

    ``place`` is where it stands in the request, for errors.
    """

    kind: Literal["image", "video"]
    content: Content
    place: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. ``role`` is system, user or assistant; parts keep their order."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Text | Media, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that the published template turns into a prompt.

    ``is_answered_next``: the prompt ends where the assistant's turn begins.
    """

    messages: tuple[ChatMessage, ...]
    is_answered_next: bool = True


Prompt = Conversation | str | tuple[int, ...]
"""A conversation, a text without a template, or token ids."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one answer is drawn. Nothing here is unresolved but what is said to be.

    ``max_tokens`` None: to the end of the context, where every answer ends at the latest.
    ``temperature`` 0: greedy. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0, the two penalties 0 and
    ``repetition_penalty`` 1 do nothing. ``seed`` None: any. ``logprobs``: how many alternatives are
    told with each token; None tells none, not even the token's own.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token and its natural log probability. ``raw``: its bytes, which may be half a letter."""

    token: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob(Alternative):
    """A token of the answer; ``top`` holds the likeliest ones at its place, likeliest first."""

    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of an answer. Only the last one has a ``finish_reason`` or an ``error``.

    ``text`` is complete characters and never holds a stop string: what could become one is held
    back until it has not. ``token_ids``: tokens drawn since the last delta, those included whose
    text is held back or cut. ``logprobs``: one per token id, where they were asked for.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: Exception | None = None


OnDelta = Callable[[Delta], None]


class Submission(Protocol):
    """An answer under way."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of images and videos included."""

    @property
    def image_tokens(self) -> int:
        """Those of images and videos alone."""

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were there already, once known."""

    @property
    def routes(self) -> Sequence[str]:
        """How each image and video was served, once the answer has ended: exact, rung, direct, or
        cache.
        """

    def cancel(self) -> None:
        """End it soon; from any thread, any number of times, also after its end."""


class ChatService(Served, Protocol):
    """One chat model on one device, with a thread of its own that draws tokens.

    ``warm_up`` and ``close`` are called once, by one thread of the server. Everything else may be
    called from any thread at any time. ``describe`` holds ``max_model_len``. ``snapshot`` holds,
    where the model counts them: ``num_running`` and ``num_waiting`` submissions, ``cache_usage``
    (0..1 of the pages of keys), ``prefix_cache_queries`` and ``prefix_cache_hits`` (tokens),
    ``num_preemptions``.
    """

    @property
    def defaults(self) -> Sampling:
        """What the checkpoint says (``generation_config.json``) where a request says nothing."""

    @property
    def max_context_tokens(self) -> int:
        """Prompt and answer together."""

    def warm_up(self) -> None:
        """Everything that must happen before the first request: load, record, check."""

    def failure(self) -> BaseException | None:
        """What ended the service's own thread, if something did: nothing is served any more, and
        what was under way got a last delta with the error.
        """

    def submit(self, prompt: Prompt, sampling: Sampling, on_delta: OnDelta) -> Submission:
        """Decode, tokenise, check and queue; may take as long as decoding takes.

        ``on_delta`` is called from the service's thread and returns at once; it may be called
        before this returns. Raises ``InputError`` (``PromptTooLong``; ``RefusedItem``
        with a media's ``place``) and ``Overloaded``.
        """

    def tokenize(self, prompt: Prompt, *, adds_special: bool = False) -> Sequence[int]:
        """The ids that ``submit`` would see; ``adds_special``: a text's with the tokens that the
        tokenizer puts around one. Raises ``InputError``.
        """

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens by their names. Raises ``InputError`` for an id
        that does not exist.
        """

    def token_strs(self, token_ids: Sequence[int]) -> Sequence[str]:
        """Each token as the vocabulary writes it. Raises ``InputError`` likewise."""

    def close(self) -> None:
        """Cancel what is under way (each gets its last delta) and end the thread."""
