"""``numerics="invariant"``: a reply is bit-exact alone, in any batch, prefix hit or miss.

The mutations at the end take one protection away each, and the same comparison fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DeviceError
from ostinato.kernels.gate import Numerics
from ostinato.lm.build import EngineSizes, build_engine, invariant_sizes
from ostinato.lm.contract import Prompt
from ostinato.lm.decode import Decode
from ostinato.lm.engine import Engine
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.scheduler import Scheduler
from ostinato.recording.config import GraphConfig
from tests.lm.engines import OFF, ask, tiny
from tests.lm.mixes import PARAMS, Answer, Mix, answer, encoder, fresh, shown, words

CHUNK = 16
SIZES: dict[str, Any] = {
    "page_size": 4,
    "max_batch": 4,
    "max_chunk": CHUNK,
    "max_length": 96,
    "prefill_rungs": (4, 8, CHUNK),
}
DTYPES = (torch.float32, torch.bfloat16)


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


def alone(model: Qwen, numerics: Numerics = "invariant") -> list[Answer]:
    """Each prompt in an engine that has seen nothing else."""
    found = []
    for prompt in prompts():
        engine = make(model, numerics)
        found.append(answer(ask(engine, fresh(prompt), PARAMS)[0]))
        engine.close()
    return found


@dataclass
class Case:
    model: Qwen
    alone: list[Answer]


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def case(request: Any) -> Case:
    model = tiny().to(request.param)
    return Case(model, alone(model))


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
    mix = Mix(engine, prompts())
    mix.play(plan)
    assert mix.different(case.alone) == []


TWICE = [(i % 7, 0, 0) for i in range(14)]
"""All prompts at once: batches, hits, and with few pages preemption."""


def mixed(model: Qwen, numerics: Numerics = "invariant", num_pages: int = 40) -> Mix:
    engine = make(model, numerics, num_pages=num_pages)
    mix = Mix(engine, prompts())
    mix.play(TWICE)
    engine.close()
    return mix


def test_preemption_and_prefix_hits_change_no_byte(case: Case) -> None:
    engine = make(case.model, num_pages=26)
    mix = Mix(engine, prompts())
    mix.play(TWICE)
    assert mix.different(case.alone) == []
    assert engine.stats().num_preempted > 0
    engine.close()
    assert mix.num_cached >= 4 * CHUNK
    assert mix.num_cached % CHUNK == 0


def test_fast_numerics_are_not_invariant() -> None:
    model = tiny()
    assert mixed(model, "fast").different(alone(model, "fast"))


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
    assert mixed(model, num_pages=num_pages).different(expected)


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
