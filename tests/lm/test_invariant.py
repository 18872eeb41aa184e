"""``numerics="invariant"``: a reply is bit-exact alone, in any batch, prefix hit or miss.

The mutations at the end take one protection away each, and the same comparison fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DeviceError
from ostinato.kernels.gate import Numerics
from ostinato.lm.build import EngineSizes, build_engine, invariant_sizes
from ostinato.lm.contract import Media, Prompt, SamplingParams, Span
from ostinato.lm.decode import Decode
from ostinato.lm.engine import Engine
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.scheduler import Scheduler
from ostinato.recording.config import GraphConfig
from tests.lm.engines import OFF, Reply, ask, tiny

CHUNK = 16
SIZES: dict[str, Any] = {
    "page_size": 4,
    "max_batch": 4,
    "max_chunk": CHUNK,
    "max_length": 96,
    "prefill_rungs": (4, 8, CHUNK),
}
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, seed=5, logprobs=3, ignore_eos=True)
DTYPES = (torch.float32, torch.bfloat16)


def words(count: int, seed: int) -> list[int]:
    return [(31 * seed + 7 * i + i * i) % 256 for i in range(count)]


def shown(ids: Sequence[int], *places: tuple[int, int, int]) -> Prompt:
    """``places``: (start, rows, which image)."""
    spans = tuple(Span(at, n, Media(bytes([which]), n, which)) for at, n, which in places)
    return replace(Prompt.of_text(list(ids)), spans=spans)


@cache
def prompts() -> tuple[Prompt, ...]:
    """Short, long, of whole chunks, with equal beginnings, with images across the chunks' cuts."""
    start = words(2 * CHUNK, 1)
    return (
        shown(words(5, 2)),
        shown(start),
        shown(start + words(9, 3)),
        shown(start[:CHUNK] + words(20, 4)),
        shown(start + words(30, 5), (10, 9, 1)),
        shown(start + words(30, 5), (10, 9, 2)),
        shown(start + words(12, 6), (10, 9, 1), (34, 6, 3)),
    )


def encoder(model: Qwen) -> Callable[[Sequence[Media]], None]:
    def encode(media: Sequence[Media]) -> None:
        for item in media:
            generator = torch.Generator().manual_seed(int(item.source))
            rows = torch.randn(item.num_rows, 4 * model.config.width, generator=generator)
            item.rows = rows.to(model.table.dtype)

    return encode


def make(
    model: Qwen, numerics: Numerics = "invariant", graph: GraphConfig = OFF, num_pages: int = 40
) -> Engine:
    engine = build_engine(
        model,
        EngineSizes(num_pages=num_pages, **SIZES),
        graph=graph,
        eos_ids=frozenset({258}),
        encode=encoder(model),
        num_levels=3,
        numerics=numerics,
        warm_up=graph.mode != "off",
    )
    engine.start()
    return engine


Answer = tuple[list[int], bytes]


def answer(reply: Reply) -> Answer:
    """Tokens, and the bytes of every log-probability with its alternatives."""
    found: list[float] = []
    for delta in reply.wait().deltas:
        assert delta.error is None
        for one in delta.logprobs or ():
            found += [one.logprob, *(value for top in one.top for value in top)]
    return reply.token_ids, np.array(found).tobytes()


def alone(model: Qwen, numerics: Numerics = "invariant") -> list[Answer]:
    """Each prompt in an engine that has seen nothing else."""
    found = []
    for prompt in prompts():
        engine = make(model, numerics)
        found.append(answer(ask(engine, fresh(prompt), PARAMS)[0]))
        engine.close()
    return found


def fresh(prompt: Prompt) -> Prompt:
    """The same request with media that nobody has encoded."""
    spans = tuple(replace(s, media=replace(s.media, rows=None)) for s in prompt.spans)
    return replace(prompt, spans=spans)


@dataclass
class Case:
    model: Qwen
    alone: list[Answer]


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def case(request: Any) -> Case:
    model = tiny().to(request.param)
    return Case(model, alone(model))


class Mix:
    """Requests that join and leave: the n-th joins when the one before has said so many pieces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.answers: list[tuple[int, Answer]] = []
        self.num_cached = self.num_preempted = 0

    def play(self, plan: Sequence[tuple[int, int, int]]) -> None:
        """``plan``: (prompt, pieces to wait for, pieces after which it is left or 0)."""
        going = []
        before: Reply | None = None
        for which, wait_for, leave_after in plan:
            if before is not None:
                until(before, wait_for)
            before, ticket = ask(self._engine, fresh(prompts()[which]), PARAMS)
            if leave_after:
                until(before, leave_after)
                ticket.cancel()
            going.append((which, leave_after, before, ticket))
        for which, leave_after, reply, ticket in going:
            reply.wait()
            self.num_cached += ticket.cached_tokens
            if not leave_after:
                self.answers.append((which, answer(reply)))


def until(reply: Reply, pieces: int) -> None:
    while len(reply.deltas) < pieces and not reply.done.wait(0.001):
        pass


PLANS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from((0, 0, 0, 1, 5))),
    min_size=2,
    max_size=9,
)
EXAMPLES = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", params=[OFF, GraphConfig()], ids=["direct", "recorded"])
def engine(request: Any, case: Case) -> Iterator[Engine]:
    engine = make(case.model, graph=request.param)
    yield engine
    for steps in engine.stats().recordings.values():
        assert steps.calls["direct"] == 0
    engine.close()


@EXAMPLES
@given(plan=PLANS)
def test_any_mix_gives_every_request_its_own_bytes(
    case: Case, engine: Engine, plan: list[tuple[int, int, int]]
) -> None:
    mix = Mix(engine)
    mix.play(plan)
    assert different(mix, case.alone) == []


def mixed(model: Qwen, numerics: Numerics = "invariant", num_pages: int = 40) -> Mix:
    """All prompts twice over, at once: batches, hits, and with few pages preemption."""
    engine = make(model, numerics, num_pages=num_pages)
    mix = Mix(engine)
    mix.play([(i % 7, 0, 0) for i in range(14)])
    mix.num_preempted = engine.stats().num_preempted
    engine.close()
    return mix


def different(mix: Mix, expected: list[Answer]) -> list[int]:
    return [which for which, got in mix.answers if got != expected[which]]


def test_preemption_and_prefix_hits_change_no_byte(case: Case) -> None:
    mix = mixed(case.model, num_pages=26)
    assert different(mix, case.alone) == []
    assert mix.num_preempted > 0
    assert mix.num_cached >= 4 * CHUNK
    assert mix.num_cached % CHUNK == 0


def test_fast_numerics_are_not_invariant() -> None:
    model = tiny()
    assert different(mixed(model, "fast"), alone(model, "fast"))


def two_decode_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.lm import build

    monkeypatch.setattr(
        build,
        "invariant_sizes",
        lambda sizes: replace(invariant_sizes(sizes), decode_rungs=(1, sizes.max_batch)),
    )


def chunks_where_room_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_own_chunk", lambda self, sequence: self._shares([sequence])[0])
    monkeypatch.setattr(Scheduler, "_reused", _pages_reused)


def _pages_reused(self: Any, sequence: Any) -> list[int]:
    last = (sequence.num_prompt - 1) // self._page_size
    pages: list[int] = self.pool.reuse(sequence.chain.digests[:last])
    return pages


def generated_tokens_are_prefilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_is_prefilling", lambda self, s: s.is_prefilling)
    monkeypatch.setattr(Scheduler, "_own_chunk", lambda self, sequence: self._shares([sequence])[0])


def chunks_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.lm import build

    monkeypatch.setattr(
        build, "invariant_sizes", lambda sizes: replace(invariant_sizes(sizes), max_chunks=4)
    )
    monkeypatch.setattr(Scheduler, "_own_chunk", None)
    plan = Scheduler.plan

    def joined(self: Any) -> Any:
        self._is_invariant = False
        try:
            return plan(self)
        finally:
            self._is_invariant = True

    monkeypatch.setattr(Scheduler, "plan", joined)


@pytest.mark.parametrize(
    ("mutate", "num_pages"),
    [
        (two_decode_rungs, 40),
        (chunks_where_room_is, 40),
        (chunks_share_a_step, 40),
        (generated_tokens_are_prefilled, 26),
    ],
)
def test_each_protection_is_needed(
    mutate: Callable[[pytest.MonkeyPatch], None], num_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    expected = alone(model)
    mutate(monkeypatch)
    assert different(mixed(model, num_pages=num_pages), expected)


def test_rows_that_depend_on_their_place_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uneven:
        def __init__(self, recorded: Any) -> None:
            self._recorded = recorded

        def __call__(self, inputs: Any, length: int) -> Any:
            tokens, logits = self._recorded(inputs, length)
            logits[2, 7] = torch.nextafter(logits[2, 7], torch.tensor(1e9))
            return tokens, logits

    check = Decode.check_rows

    def uneven(self: Any) -> None:
        self.recorded = Uneven(self.recorded)
        check(self)

    monkeypatch.setattr(Decode, "check_rows", uneven)
    with pytest.raises(DeviceError, match="row 2 of a decode of 4"):
        make(tiny())


def test_chunks_are_whole_pages() -> None:
    sizes = EngineSizes(num_pages=40, **(SIZES | {"page_size": 3}))
    with pytest.raises(ConfigError, match="max_chunk is 16; expected a multiple of page_size, 3"):
        invariant_sizes(sizes)
