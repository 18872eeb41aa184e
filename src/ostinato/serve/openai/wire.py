"""Answers in OpenAI's shapes: whole ones, chunks of a stream, log probabilities, usage."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ostinato.serve.openai.contract import Alternative, Delta, TokenLogprob

LOWEST_LOGPROB = -9999.0
"""What OpenAI sends for a token that cannot come; JSON has no infinity."""

DONE = b"data: [DONE]\n\n"


def dumps(value: Any) -> bytes:
    """Compact JSON, escaped to ASCII so that half a surrogate pair passes; never ``NaN``."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % dumps(value)


def usage(
    prompt_tokens: int, image_tokens: int, cached_tokens: int | None, completion_tokens: int
) -> dict[str, Any]:
    """OpenAI's account; ``image_tokens`` are those of images and videos."""
    details = {"image_tokens": image_tokens, "text_tokens": prompt_tokens - image_tokens}
    if cached_tokens is not None:
        details["cached_tokens"] = cached_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": details,
    }


@dataclass(slots=True)
class Choice:
    """One answer as far as it has come. ``has_logprobs``: they were asked for."""

    index: int
    has_logprobs: bool
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_tokens: int = 0
    num_sent: int = 0
    finish_reason: str | None = None
    offset: int = 0

    def add(self, delta: Delta, *, is_kept: bool) -> None:
        """Count a delta; ``is_kept`` where the whole answer is wanted in the end."""
        self.num_tokens += len(delta.token_ids)
        self.finish_reason = delta.finish_reason
        if is_kept:
            self.texts.append(delta.text)
            self.logprobs.extend(delta.logprobs)


class Shape(Protocol):
    """One kind of completion on the wire."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def whole(self, choice: Choice) -> dict[str, Any]:
        """An entry of ``choices``."""

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """Entries of ``choices`` for what is new, one per chunk; none where nothing shows."""


def head_of(shape: Shape, request_id: str, model: str, *, is_stream: bool) -> dict[str, Any]:
    """What every chunk and every whole answer begins with."""
    return {
        "id": f"{shape.id_prefix}-{request_id}",
        "object": shape.chunk_object if is_stream else shape.whole_object,
        "created": int(time.time()),
        "model": model,
    }


class ChatShape:
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(choice.texts), "refusal": None}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice, choice.logprobs),
            "finish_reason": choice.finish_reason,
        }

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        """The role comes first and alone, with the first token and not before it."""
        entries = []
        if not choice.num_sent:
            entries.append(self._chunk(choice, {"role": "assistant", "content": ""}, None, None))
        if delta.text or delta.logprobs or delta.finish_reason:
            content = {"content": delta.text} if delta.text or delta.logprobs else {}
            logprobs = self._logprobs(choice, delta.logprobs) if content else None
            entries.append(self._chunk(choice, content, logprobs, delta.finish_reason))
        choice.num_sent += len(entries)
        return entries

    def _chunk(
        self, choice: Choice, delta: dict[str, Any], logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not choice.has_logprobs:
            return None
        content = [
            {**_entry(token), "top_logprobs": [_entry(one) for one in token.top]}
            for token in entries
        ]
        return {"content": content, "refusal": None}


class CompletionShape:
    """``/v1/completions``."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def whole(self, choice: Choice) -> dict[str, Any]:
        return self._entry(choice, "".join(choice.texts), choice.logprobs, choice.finish_reason)

    def chunks(self, choice: Choice, delta: Delta) -> list[dict[str, Any]]:
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return []
        return [self._entry(choice, delta.text, delta.logprobs, delta.finish_reason)]

    def _entry(
        self, choice: Choice, text: str, entries: Sequence[TokenLogprob], reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice, entries),
            "finish_reason": reason,
        }

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """Parallel lists; ``text_offset`` counts characters of the tokens before."""
        if not choice.has_logprobs:
            return None
        offsets = []
        for token in entries:
            offsets.append(choice.offset)
            choice.offset += len(token.token)
        return {
            "tokens": [token.token for token in entries],
            "token_logprobs": [finite(token.logprob) for token in entries],
            "top_logprobs": [_by_token(token) for token in entries],
            "text_offset": offsets,
        }


def finite(logprob: float) -> float:
    """``-inf`` is sent as OpenAI sends it."""
    return max(float(logprob), LOWEST_LOGPROB)


def _entry(token: Alternative) -> dict[str, Any]:
    return {"token": token.token, "logprob": finite(token.logprob), "bytes": list(token.raw)}


def _by_token(token: TokenLogprob) -> Mapping[str, float]:
    """The likeliest tokens and, as OpenAI does, the drawn one if it is not among them."""
    return {one.token: finite(one.logprob) for one in (*token.top, token)}
