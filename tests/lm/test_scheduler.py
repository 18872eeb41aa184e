"""Whose turn it is: prefill and decode alternate, chunks are shared evenly, the oldest stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ostinato.lm.contract import Prompt, SamplingParams
from ostinato.lm.kv_cache import PagePool, chain_of
from ostinato.lm.sampling import SCRATCH, Sampler
from ostinato.lm.scheduler import Plan, Scheduler, Sequence
from ostinato.lm.text import TextStream

PAGE = 4


def sequence(length: int, first: int = 0) -> Sequence:
    prompt = Prompt.of_text([first + i for i in range(length)])
    sampler = Sampler(SamplingParams(), 0)
    text = TextStream(lambda ids: "")
    return Sequence(prompt, sampler, text, lambda delta: None, 100, chain_of(prompt, PAGE))


def scheduler(num_pages: int, *waiting: Sequence, **how: bool) -> Scheduler:
    made = Scheduler(
        PagePool(num_pages),
        page_size=PAGE,
        max_batch=4,
        max_tokens=16,
        max_chunks=3,
        **how,
    )
    made.waiting.extend(waiting)
    return made


def step(made: Scheduler) -> Plan:
    """Plan a step and pretend to have made it; who has nothing left gets a token."""
    plan = made.plan()
    assert plan is not None
    for chunk in plan.chunks:
        made.computed(chunk)
        if not chunk.sequence.num_left:
            chunk.sequence.token_ids.append(7)
    return plan


def lengths(plan: Plan, *of: Sequence) -> list[int]:
    taken = {id(chunk.sequence): chunk.end - chunk.start for chunk in plan.chunks}
    return [taken.get(id(one), 0) for one in of]


def test_a_long_prompt_leaves_shorter_ones_their_share_and_decoding_its_turn() -> None:
    long, short, other = sequence(60, 100), sequence(3, 200), sequence(9, 300)
    made = scheduler(64, long, short, other)
    first = step(made)
    assert first.is_prefill
    assert lengths(first, long, short, other) == [7, 3, 6]
    second = step(made)
    assert not second.is_prefill
    assert lengths(second, long, short, other) == [0, 1, 0]
    third = step(made)
    assert lengths(third, long, short, other) == [13, 0, 3]
    assert [step(made).is_prefill for _ in range(4)] == [False, True, False, True]


def test_prompts_that_are_not_cut_share_a_step_where_all_of_them_fits() -> None:
    long, short, other = sequence(13, 100), sequence(3, 200), sequence(9, 300)
    made = scheduler(64, long, short, other, cuts_prompts=False)
    assert lengths(step(made), long, short, other) == [13, 3, 0]
    assert lengths(step(made), long, short, other) == [1, 1, 0]
    assert lengths(step(made), long, short, other) == [0, 0, 9]


@pytest.mark.parametrize("is_invariant", [False, True])
def test_without_a_prefix_cache_a_prompt_is_computed_whole_each_time(is_invariant: bool) -> None:
    for is_on, first in ((True, 16), (False, 0)):
        made = scheduler(64, is_prefix_cache_on=is_on, is_invariant=is_invariant)
        for start in (0, first):
            one = sequence(20)
            made.waiting.append(one)
            plan = step(made)
            assert plan.chunks[0].start == start
            assert one.num_cached == start
            while one.num_generated < 8:
                step(made)
            made.remove(one)
        assert made.pool.num_free == 64


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    old, young, later = sequence(7, 100), sequence(3, 200), sequence(1, 300)
    made = scheduler(4, old, young)
    step(made)
    made.waiting.append(later)
    while made.num_preempted == 0:
        step(made)
    assert made.running == [old]
    assert list(made.waiting)[:2] == [young, later]
    assert young.pages == []
    made.remove(old)
    plan = step(made)
    assert plan.is_prefill
    assert plan.chunks[0].sequence in (young, later)
    assert made.running == [young, later]
    for one in (young, later):
        made.remove(one)
    assert made.pool.num_free == 4
    assert made.plan() is None


def test_invariant_sequences_share_whole_chunks_of_prompts_alone() -> None:
    first = sequence(20)
    made = scheduler(64, first, is_invariant=True)
    while first.num_generated < 30:
        step(made)
    made.remove(first)
    prompt = Prompt.of_text(first.token_ids)
    again = Sequence(prompt, first.sampler, first.text, first.on_delta, 100, chain_of(prompt, PAGE))
    made.waiting.append(again)
    assert [(c.start, c.end) for c in step(made).chunks] == [(16, 32)]


def pipelined(made: Scheduler) -> Iterator[Plan]:
    """Plans to the end, as an engine makes them: a token is known once the next step is begun."""
    landing: list[Sequence] = []
    while True:
        plan = made.plan()
        begun: list[Sequence] = []
        if plan is not None:
            yield plan
            for chunk in plan.chunks:
                made.computed(chunk)
            begun = [c.sequence for c in plan.chunks if not c.sequence.num_left]
        for one in begun:
            one.num_pending += 1
        for one in landing:
            one.num_pending -= 1
            one.token_ids.append(7)
            if one.num_generated == one.max_tokens:
                made.remove(one)
        if plan is None and not landing:
            return
        landing = begun


def test_what_an_invariant_sequence_generated_is_decoded_again_and_kept_once() -> None:
    old, young = sequence(7, 100), sequence(3, 200)
    old.max_tokens, young.max_tokens = 9, 8
    made = scheduler(4, old, young, is_invariant=True)
    kept: dict[int, list[int]] = {id(old): [], id(young): []}
    chunks: list[tuple[bool, int, int]] = []
    for plan in pipelined(made):
        for chunk in plan.chunks:
            if chunk.draw.slot != SCRATCH:
                kept[id(chunk.sequence)].append(chunk.draw.place)
            if chunk.sequence is young:
                chunks.append((plan.is_prefill, chunk.start, chunk.end))
    assert made.num_preempted == 1
    assert kept == {id(old): [*range(7, 16)], id(young): [*range(3, 11)]}
    again = chunks.index((True, 0, 3), 1)
    assert again > 1
    for run in (chunks[:again], chunks[again:]):
        assert run == [(True, 0, 3), *((False, i, i + 1) for i in range(3, 2 + len(run)))]
    assert chunks[-1] == (False, 9, 10)
    assert made.pool.num_free == 4
