"""A chat model without a model: it says what it was asked, a word at a time, on its own thread.

A word is a token; its id is the place of the word in a list that grows. It can be made to wait, to
fail and to die.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.errors import InputError, Overloaded, PromptTooLong, RefusedItem
from ostinato.serve.openai.contract import (
    Alternative,
    Conversation,
    Delta,
    FinishReason,
    Media,
    OnDelta,
    Prompt,
    Sampling,
    Text,
    TokenLogprob,
)

IMAGE_TOKENS = 10


def words(text: str) -> list[str]:
    """Words with the space before them."""
    return re.findall(r"\s*\S+|\s+$", text)


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    found = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(found)], True) if found else (text, False)


@dataclass(eq=False)
class StubSubmission:
    tokens: list[str]
    shown: str
    finish: FinishReason
    sampling: Sampling
    on_delta: OnDelta
    prompt_tokens: int
    image_tokens: int
    cached_tokens: int | None = 3
    routes: tuple[str, ...] = ()
    num_drawn: int = 0
    num_shown: int = 0
    is_cancelled: bool = False
    is_over: bool = False

    def cancel(self) -> None:
        if not self.is_over:
            self.is_cancelled = True


class StubChat:
    name = "stub-chat"
    max_context_tokens = 2000

    def __init__(self, token_s: float = 0.0) -> None:
        self.defaults = Sampling(temperature=0.7, top_k=20)
        self.token_s = token_s
        self.vocabulary: list[str] = []
        self.lock = threading.Lock()
        self.running: list[StubSubmission] = []
        self.submitted: list[tuple[Prompt, Sampling]] = []
        self.finished: list[StubSubmission] = []
        self.may_warm_up = threading.Event()
        self.may_warm_up.set()
        self.may_draw = threading.Event()
        self.may_draw.set()
        self.may_submit = threading.Event()
        self.may_submit.set()
        self.warm_up_error: Exception | None = None
        self.draw_error: Exception | None = None
        self.death: Exception | None = None
        self.is_closed = False
        self.submit_threads: set[str] = set()
        self.thread = threading.Thread(target=self._run, name="stub-engine", daemon=True)

    def describe(self) -> Mapping[str, Any]:
        return {"max_model_len": self.max_context_tokens}

    def warm_up(self) -> None:
        self.may_warm_up.wait(10)
        if self.warm_up_error is not None:
            raise self.warm_up_error
        self.thread.start()

    def failure(self) -> BaseException | None:
        return self.death

    def id_of(self, word: str) -> int:
        with self.lock:
            if word not in self.vocabulary:
                self.vocabulary.append(word)
            return self.vocabulary.index(word)

    def tokenize(self, prompt: Prompt, *, adds_special: bool = False) -> list[int]:
        if adds_special:
            return [self.id_of("<begin>"), *self.tokenize(prompt)]
        if isinstance(prompt, tuple):
            return list(prompt)
        if isinstance(prompt, str):
            return [self.id_of(word) for word in words(prompt)]
        ids = []
        for message in prompt.messages:
            ids.append(self.id_of(f"<{message.role}>"))
            for part in message.parts:
                if isinstance(part, Text):
                    ids += [self.id_of(word) for word in words(part.text)]
                else:
                    ids += [self.id_of(f"<{part.kind}>")] * IMAGE_TOKENS
        return [*ids, self.id_of("<answer>")] if prompt.is_answered_next else ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        for token in token_ids:
            if token >= len(self.vocabulary):
                raise InputError(f"[token-id] {token}; expected less than {len(self.vocabulary)}")
        return "".join(self.vocabulary[token] for token in token_ids)

    def token_strs(self, token_ids: Sequence[int]) -> list[str]:
        return [self.vocabulary[token].replace(" ", "Ġ") for token in token_ids]

    def answer_to(self, prompt: Prompt) -> str:
        """What is said: the last message again, and what was seen."""
        if not isinstance(prompt, Conversation):
            said = prompt if isinstance(prompt, str) else self.detokenize(prompt)
            return f" and {said} again"
        media = [p for m in prompt.messages for p in m.parts if isinstance(p, Media)]
        texts = [p.text for p in prompt.messages[-1].parts if isinstance(p, Text)]
        seen = f"{len(media)} seen of {sum(len(p.content) for p in media)}."
        return f"Turn {len(prompt.messages)}: {' '.join(texts)} {seen}"

    def submit(self, prompt: Prompt, sampling: Sampling, on_delta: OnDelta) -> StubSubmission:
        self.submit_threads.add(threading.current_thread().name)
        self.may_submit.wait(10)
        images = 0
        if isinstance(prompt, Conversation):
            for part in (p for m in prompt.messages for p in m.parts if isinstance(p, Media)):
                images += IMAGE_TOKENS
                content = part.content if isinstance(part.content, bytes) else part.content[0]
                if content.startswith(b"broken"):
                    raise RefusedItem(part.place, InputError("[broken-image] PNG data: cut off"))
                if content.startswith(b"crash"):
                    raise ZeroDivisionError("secret")
                if content.startswith(b"full"):
                    raise Overloaded("no pages are left", retry_after_s=7)
        num_prompt = len(self.tokenize(prompt))
        if num_prompt >= self.max_context_tokens:
            raise PromptTooLong(
                f"[context-length] {num_prompt} tokens; at most {self.max_context_tokens - 1}"
            )
        shown, is_stopped = cut_at(self.answer_to(prompt), sampling.stop)
        tokens, finish = words(self.answer_to(prompt)), "stop"
        if sampling.max_tokens is not None and sampling.max_tokens < len(tokens):
            tokens = tokens[: sampling.max_tokens]
            if not is_stopped or len("".join(tokens)) < len(shown):
                shown, finish = "".join(tokens)[: len(shown)], "length"
        made = StubSubmission(tokens, shown, finish, sampling, on_delta, num_prompt, images)  # type: ignore[arg-type]
        made.routes = ("rung", "cache")[: images // IMAGE_TOKENS]
        with self.lock:
            self.submitted.append((prompt, sampling))
            self.running.append(made)
        return made

    def snapshot(self) -> Mapping[str, float]:
        return {
            "num_running": len(self.running),
            "num_waiting": 0,
            "cache_usage": 0.25,
            "prefix_cache_queries": 8,
            "prefix_cache_hits": 6,
        }

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        self.is_closed = True
        self.may_draw.set()
        if self.thread.is_alive():
            self.thread.join(5)

    def _run(self) -> None:
        while not self.is_closed:
            with self.lock:
                jobs = list(self.running)
            for job in jobs:
                self._step(job)
            time.sleep(self.token_s if jobs else 0.001)
        for job in list(self.running):
            self._end(job, Delta(finish_reason="cancelled"))

    def _step(self, job: StubSubmission) -> None:
        if job.is_cancelled:
            self._end(job, Delta(finish_reason="cancelled"))
            return
        if not self.may_draw.is_set():
            return
        if self.draw_error is not None and job.num_drawn >= 1:
            self._end(job, Delta(error=self.draw_error))
            return
        token = job.tokens[job.num_drawn]
        job.num_drawn += 1
        until = len("".join(job.tokens[: job.num_drawn]))
        text = job.shown[job.num_shown : until]
        job.num_shown = max(job.num_shown, min(until, len(job.shown)))
        is_last = job.num_drawn == len(job.tokens) or until > len(job.shown)
        entries = () if job.sampling.logprobs is None else (self._logprob(token, job),)
        delta = Delta(
            text, (self.id_of(token),), entries, finish_reason=job.finish if is_last else None
        )
        if is_last:
            self._end(job, delta)
        else:
            job.on_delta(delta)

    def _logprob(self, token: str, job: StubSubmission) -> TokenLogprob:
        others = [Alternative(token, token.encode(), -0.5), Alternative("no", b"no", -float("inf"))]
        return TokenLogprob(token, token.encode(), -0.5, tuple(others[: job.sampling.logprobs]))

    def _end(self, job: StubSubmission, delta: Delta) -> None:
        job.is_over = True
        with self.lock:
            self.running.remove(job)
            self.finished.append(job)
        job.on_delta(delta)
