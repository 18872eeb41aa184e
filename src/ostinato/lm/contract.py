"""What a language model is to the code that schedules, records and serves it.

A decoder is a pure function of tensors with static shapes over a paged cache. What describes the
batch is computed on the host and arrives as small integer tensors. The engine deals in token ids;
where rows of embeddings come from (an image encoder) is its caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ostinato.errors import InputError

FinishReason = Literal["stop", "length", "cancelled"]
Positions = npt.NDArray[np.int32]
"""(3, tokens): time, row and column; equal for text."""

_SEEDS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class LmConfig:
    """Sizes of a decoder, from the checkpoint."""

    model_type: str
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner_width: int
    num_tokens: int
    theta: float
    eps: float
    max_positions: int
    has_qkv_bias: bool
    has_head_norm: bool
    is_tied: bool
    rope_sections: tuple[int, int, int]
    """Rotary frequencies that turn with time, row and column."""
    is_interleaved: bool
    """Frequencies of the three axes take turns (Qwen3-VL) or stand in blocks (Qwen2.5-VL)."""


class Batch(NamedTuple):
    """New tokens of B sequences, one after the other, T rows in all; every tensor is an integer
    one. Rows and sequences of padding: slot -1, length 0.
    """

    positions: Tensor
    """(3, T)."""
    slots: Tensor
    """(T,): where keys and values go; distinct, negative for rows that are dropped."""
    page_table: Tensor
    """(B, max_pages)."""
    query_offsets: Tensor
    """(B + 1,), ascending from 0."""
    kv_lengths: Tensor
    """(B,): keys of each sequence, the new ones included."""
    rows: Tensor
    """(N,): rows whose logits are asked for."""


class LanguageModel(Protocol):
    """A decoder; its weights apart, it writes to the cache only.

    The cache is (layers, 2, pages, page_size, kv_heads, head_dim), keys first.
    """

    @property
    def config(self) -> LmConfig: ...

    def embed(self, ids: Tensor) -> Tensor:
        """(T, width) of ids (T,)."""

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        cache: Tensor,
        *,
        max_query_length: int,
        deepstack: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """Logits (N, num_tokens). ``x``: (T, width); ``deepstack``: level i, (T, width), is added
        to what layer i leaves.
        """


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a reply ends; as OpenAI's API and vLLM name them.

    ``max_tokens``: ``None`` is what the context leaves. ``temperature`` 0 is greedy. ``top_k`` 0
    and ``min_p`` 0 are off. ``seed``: ``None`` draws one for each request. ``logprobs``: how many
    alternatives to report beside each token. Raises ``InputError`` naming the field.
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

    def __post_init__(self) -> None:
        limits: tuple[tuple[str, float, float], ...] = (
            ("temperature", 0.0, 100.0),
            ("top_p", 1e-9, 1.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
            ("repetition_penalty", 1e-3, 100.0),
            ("top_k", 0, 2**31 - 1),
        )
        for name, low, high in limits:
            value = getattr(self, name)
            if not isfinite(value) or not low <= value <= high:
                raise InputError(f"{name} is {value!r}; expected {low:g} to {high:g}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; expected at least 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise InputError(f"logprobs is {self.logprobs}; expected 0 to 20")
        if self.seed is not None and self.seed not in _SEEDS:
            raise InputError(f"seed is {self.seed}; expected {_SEEDS[0]} to {_SEEDS[-1]}")
        if any(not text for text in self.stop):
            raise InputError("stop holds an empty string")

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(eq=False)
class Media:
    """Something that has rows of embeddings, which are made when a prefill first needs them.

    ``content``: a digest of all that decides the rows; ``source``: whatever the encoder takes.
    ``rows``: (n, width * (1 + DeepStack levels)) on the model's device once encoded; ``route``: how
    the encoder served them, ``None`` as long as nobody asked it.
    """

    content: bytes
    num_rows: int
    source: Any
    rows: Tensor | None = None
    route: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``start + length`` of a prompt are rows of ``media`` from ``first``."""

    start: int
    length: int
    media: Media
    first: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with their positions (3, tokens) and the spans that are no text, ascending."""

    token_ids: tuple[int, ...]
    positions: Positions
    spans: tuple[Span, ...] = ()

    @classmethod
    def of_text(cls, token_ids: list[int] | tuple[int, ...]) -> Prompt:
        line = np.arange(len(token_ids), dtype=np.int32)
        return cls(tuple(token_ids), np.ascontiguousarray(np.broadcast_to(line, (3, len(line)))))


class TokenLogprob(NamedTuple):
    """Natural logarithm of a token's probability; ``top``: the most probable (token, logprob).

    Of the model's own distribution, before temperature, penalties and filters.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of a reply; the last has ``finish_reason``.

    ``error``: why a request ended that was not cancelled by its owner (its reason is then
    ``"cancelled"`` too).
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None


OnDelta = Callable[[ChatDelta], None]
