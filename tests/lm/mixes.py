"""Mixes of requests that join and leave, and the bytes of what each of them was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from ostinato.lm.contract import Media, Prompt, SamplingParams, Span
from ostinato.lm.engine import Engine
from ostinato.lm.models.qwen import Qwen
from tests.lm.engines import Reply, ask

PARAMS = SamplingParams(
    max_tokens=12,
    temperature=0.8,
    seed=5,
    logprobs=3,
    ignore_eos=True,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
)
Answer = tuple[list[int], bytes]
Plan = Sequence[tuple[int, int, int]]
"""(prompt, pieces of the reply before to wait for, pieces after which it is left or 0)."""


def words(count: int, seed: int) -> list[int]:
    return [(31 * seed + 7 * i + i * i) % 256 for i in range(count)]


def shown(ids: Sequence[int], *places: tuple[int, int, int]) -> Prompt:
    """``places``: (start, rows, which image)."""
    spans = tuple(Span(at, n, Media(bytes([which]), n, which)) for at, n, which in places)
    return replace(Prompt.of_text(list(ids)), spans=spans)


def fresh(prompt: Prompt) -> Prompt:
    """The same request with media that nobody has encoded."""
    spans = tuple(replace(s, media=replace(s.media, rows=None)) for s in prompt.spans)
    return replace(prompt, spans=spans)


def encoder(model: Qwen, *, num_levels: int = 3) -> Callable[[Sequence[Media]], None]:
    """Rows of media that depend on which image it is, alone."""

    def encode(media: Sequence[Media]) -> None:
        width = (1 + num_levels) * model.config.width
        for item in media:
            generator = torch.Generator().manual_seed(int(item.source))
            item.rows = torch.randn(item.num_rows, width, generator=generator).to(model.table)

    return encode


def answer(reply: Reply) -> Answer:
    """Tokens, and the bytes of every log-probability with its alternatives."""
    found: list[float] = []
    for delta in reply.wait().deltas:
        assert delta.error is None
        for one in delta.logprobs or ():
            found += [one.logprob, *(value for top in one.top for value in top)]
    return reply.token_ids, np.array(found).tobytes()


class Mix:
    """``play`` hands a plan's requests to an engine, and keeps what those that stayed were told."""

    def __init__(
        self, engine: Engine, prompts: Sequence[Prompt], params: SamplingParams = PARAMS
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._params = params
        self.answers: list[tuple[int, Answer]] = []
        self.num_cached = 0

    def play(self, plan: Plan) -> None:
        going = []
        before: Reply | None = None
        for which, wait_for, leave_after in plan:
            if before is not None:
                _until(before, wait_for)
            before, ticket = ask(self._engine, fresh(self._prompts[which]), self._params)
            if leave_after:
                _until(before, leave_after)
                ticket.cancel()
            going.append((which, leave_after, before, ticket))
        for which, leave_after, reply, ticket in going:
            reply.wait()
            self.num_cached += ticket.cached_tokens
            if not leave_after:
                self.answers.append((which, answer(reply)))

    def different(self, expected: Sequence[Answer]) -> list[int]:
        """Which prompts have got other bytes."""
        return [which for which, got in self.answers if got != expected[which]]


def _until(reply: Reply, pieces: int) -> None:
    while len(reply.deltas) < pieces and not reply.done.wait(0.001):
        pass
