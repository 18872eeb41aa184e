"""The engine on a tiny model: batches, chunks, the cache, cancelling, too little memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from ostinato.errors import InputError, Overloaded, PromptTooLong
from ostinato.lm.build import EngineSizes, largest_recordings_bytes
from ostinato.lm.contract import Batch, Media, Prompt, SamplingParams, Span
from ostinato.lm.models.qwen import Qwen
from ostinato.recording.config import GraphConfig
from ostinato.recording.graphed import shared_runner
from tests.lm.engines import GREEDY, OFF, Reply, ask, make_engine, tiny

PROMPTS = [[(7 * i + j) % 256 for j in range(n)] for i, n in enumerate((5, 40, 17, 1, 63))]


@pytest.fixture(scope="module")
def model() -> Qwen:
    return tiny()


@torch.inference_mode()
def by_hand(model: Qwen, ids: list[int], count: int) -> list[int]:
    """Greedy tokens, each from a whole prefill of everything before it."""
    ids = list(ids)
    config = model.config
    for _ in range(count):
        n = len(ids)
        shape = (config.num_layers, 2, 1, n, config.num_kv_heads, config.head_dim)
        at = torch.arange(n)
        batch = Batch(
            at.repeat(3, 1),
            at,
            torch.zeros(1, 1, dtype=torch.int64),
            torch.tensor([0, n]),
            torch.tensor([n]),
            torch.tensor([n - 1]),
        )
        x = model.embed(torch.tensor(ids))
        ids.append(int(model(x, batch, torch.zeros(shape), max_query_length=n).argmax()))
    return ids[-count:]


@pytest.fixture(scope="module")
def expected(model: Qwen) -> list[list[int]]:
    return [by_hand(model, ids, 12) for ids in PROMPTS]


def test_batches_and_chunks_give_the_tokens_of_a_plain_forward(
    model: Qwen, expected: list[list[int]]
) -> None:
    engine = make_engine(model)
    replies = [ask(engine, ids)[0] for ids in PROMPTS]
    assert [r.wait().token_ids for r in replies] == expected
    assert [r.reason for r in replies] == ["length"] * 5
    stats = engine.stats()
    assert stats.num_free_pages == stats.num_pages
    engine.close()


def test_a_cached_prefix_is_not_computed_and_changes_no_token(
    model: Qwen, expected: list[list[int]]
) -> None:
    engine = make_engine(model)
    ask(engine, PROMPTS[4])[0].wait()
    again, ticket = ask(engine, PROMPTS[4])
    assert again.wait().token_ids == expected[4]
    assert ticket.cached_tokens == 60
    more, ticket = ask(engine, PROMPTS[4] + expected[4][:5])
    assert more.wait().token_ids[:7] == expected[4][5:]
    assert ticket.cached_tokens == 64  # a page that holds generated tokens among them
    engine.close()


def test_too_few_pages_preempt_and_lose_nothing(model: Qwen, expected: list[list[int]]) -> None:
    engine = make_engine(model, num_pages=20, max_length=80)
    replies = [ask(engine, ids)[0] for ids in PROMPTS * 2]
    assert [r.wait().token_ids for r in replies] == expected * 2
    long = replace(GREEDY, max_tokens=40)
    replies = [ask(engine, ids, long)[0] for ids in PROMPTS[:4]]
    assert [r.wait().token_ids[:12] for r in replies] == expected[:4]
    stats = engine.stats()
    assert stats.num_preempted > 0
    assert stats.num_free_pages == 20
    engine.close()


def test_seeded_draws_do_not_depend_on_the_batch_or_on_preemption(model: Qwen) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.0, top_p=0.95, seed=11, ignore_eos=True)
    roomy, tight = make_engine(model), make_engine(model, num_pages=20, max_length=80)
    alone = ask(roomy, PROMPTS[0], params)[0].wait().token_ids
    replies = [ask(tight, ids, params)[0] for ids in PROMPTS[:4]]
    assert replies[0].wait().token_ids == alone
    assert len(set(alone)) > 8
    for reply in replies:
        reply.wait()
    roomy.close()
    tight.close()


def test_logprobs_reach_the_reply(model: Qwen) -> None:
    engine = make_engine(model)
    plain = ask(engine, PROMPTS[0], replace(GREEDY, logprobs=2, max_tokens=30))[0].wait()
    for delta in plain.deltas:
        assert delta.logprobs is not None
        assert delta.logprobs[0].top[0] == (delta.token_ids[0], delta.logprobs[0].logprob)
    engine.close()


def test_stop_ids_eos_and_stop_strings_end_a_reply(model: Qwen, expected: list[list[int]]) -> None:
    engine = make_engine(model)
    stop = replace(GREEDY, stop_token_ids=(expected[0][3],))
    first = expected[0].index(expected[0][3])
    reply = ask(engine, PROMPTS[0], stop)[0].wait()
    assert (reply.token_ids, reply.reason) == (expected[0][: first + 1], "stop")
    whole = ask(engine, PROMPTS[0])[0].wait().text
    word = whole[3:5]
    reply = ask(engine, PROMPTS[0], replace(GREEDY, stop=(word,)))[0].wait()
    assert (reply.text, reply.reason) == (whole[: whole.index(word)], "stop")
    engine.close()


def test_cancel_frees_the_pages_and_leaves_the_others_alone(
    model: Qwen, expected: list[list[int]]
) -> None:
    engine = make_engine(model)
    endless = replace(GREEDY, max_tokens=100)
    first, ticket = ask(engine, PROMPTS[0], endless)
    other = ask(engine, PROMPTS[1])[0]
    ticket.cancel()
    assert first.wait().reason == "cancelled"
    assert other.wait().token_ids == expected[1]
    ticket.cancel()
    assert engine.stats().num_free_pages == 64
    assert engine.stats().finished["cancelled"] == 1
    engine.close()


def test_what_does_not_fit_is_refused_and_a_full_queue_says_when(model: Qwen) -> None:
    engine = make_engine(model, max_waiting=2)
    with pytest.raises(PromptTooLong, match="200 in the prompt, 12 in the completion"):
        ask(engine, [1] * 200)
    with pytest.raises(InputError, match="empty"):
        ask(engine, [])
    gate, entered = threading.Event(), threading.Event()

    class Slow(Reply):
        def __call__(self, delta: object) -> None:
            entered.set()
            gate.wait(30)
            super().__call__(delta)  # type: ignore[arg-type]

    from ostinato.lm.text import TextStream

    slow = Slow()
    engine.submit(Prompt.of_text([1]), GREEDY, TextStream(lambda ids: ""), slow)
    entered.wait(30)
    replies = [ask(engine, [2])[0] for _ in range(2)]
    with pytest.raises(Overloaded):
        ask(engine, [3])
    gate.set()
    for reply in replies:
        assert reply.wait().reason == "length"
    engine.close()
    with pytest.raises(Overloaded, match="closed"):
        ask(engine, [3])


def test_a_request_whose_media_cannot_be_encoded_ends_alone(
    model: Qwen, expected: list[list[int]]
) -> None:
    width = model.config.width

    def encode(media: object) -> None:
        for item in media:  # type: ignore[attr-defined]
            if item.content == b"bad":
                raise InputError("a broken image")
            generator = torch.Generator().manual_seed(int(item.source))
            item.rows = torch.randn(item.num_rows, 4 * width, generator=generator)

    def with_media(content: bytes, seed: int) -> Prompt:
        plain = Prompt.of_text(PROMPTS[1])
        return replace(plain, spans=(Span(10, 9, Media(content, 9, seed)),))

    engine = make_engine(model, encode=encode)
    bad = ask(engine, with_media(b"bad", 0))[0]
    good = ask(engine, with_media(b"good", 1))[0]
    text = ask(engine, PROMPTS[1])[0]
    assert isinstance(bad.wait().deltas[-1].error, InputError)
    assert text.wait().token_ids == expected[1]
    assert good.wait().token_ids != expected[1]
    again, ticket = ask(engine, with_media(b"good", 1))
    assert again.wait().token_ids == good.token_ids
    assert ticket.cached_tokens == 36
    assert engine.stats().num_free_pages == 64
    engine.close()


def test_recorded_steps_are_bit_exact_to_direct_ones(model: Qwen) -> None:
    """Log-probabilities of every step, with media and text, chunks and batches: equal floats."""

    def encode(media: object) -> None:
        for item in media:  # type: ignore[attr-defined]
            generator = torch.Generator().manual_seed(int(item.source))
            item.rows = torch.randn(item.num_rows, 4 * model.config.width, generator=generator)

    def replies(graph: GraphConfig) -> tuple[list[object], object]:
        sizes = {"max_batch": 2, "max_chunk": 32, "max_length": 64, "max_chunks": 1}
        engine = make_engine(model, graph=graph, encode=encode, **sizes)
        params = replace(GREEDY, logprobs=3, repetition_penalty=1.3, frequency_penalty=0.5)
        media = replace(Prompt.of_text(PROMPTS[1]), spans=(Span(10, 9, Media(b"x", 9, 5)),))
        found = []
        for prompt in (media, Prompt.of_text(PROMPTS[2]), Prompt.of_text(PROMPTS[1])):
            found.append(ask(engine, prompt, params)[0].wait().deltas)
        stats = engine.stats()
        engine.close()
        return found, stats.recordings

    direct, nothing = replies(GraphConfig(mode="off"))
    recorded, stats = replies(GraphConfig())
    assert recorded == direct
    assert not nothing
    for name, rungs in (("prefill", 2), ("decode", 2)):
        assert stats[name].num_recordings == rungs, stats[name].refusals  # type: ignore[index]
        assert stats[name].calls["exact"] > 0  # type: ignore[index]
        assert stats[name].calls["direct"] == 0  # type: ignore[index]


def test_any_order_of_joining_and_leaving_gives_everyone_their_own_tokens(
    model: Qwen, expected: list[list[int]]
) -> None:
    engine = make_engine(model, num_pages=24, max_length=96)
    rng = random.Random(0)
    going = []
    for _ in range(30):
        which = rng.randrange(5)
        reply, ticket = ask(engine, PROMPTS[which])
        leaves = rng.random() < 0.3
        if leaves:
            ticket.cancel()
        going.append((which, leaves, reply))
    for which, leaves, reply in going:
        reply.wait()
        if not leaves:
            assert reply.token_ids == expected[which]
    assert engine.stats().num_free_pages == 24
    engine.close()


def test_the_largest_recordings_are_weighed_and_dropped(model: Qwen) -> None:
    graph = GraphConfig(budget_bytes=(1 << 30) + 7)  # a lane that other tests leave nothing to do
    sizes = EngineSizes(num_pages=16, page_size=4, max_length=64, max_batch=2, max_chunk=32)
    budget = shared_runner(model.table.device, graph).budget
    before = budget.held()
    weighed = largest_recordings_bytes(model, sizes, graph=graph, num_levels=3)
    assert budget.held() == before
    features = 32 * model.config.width * 4 * 4  # the static input alone
    assert features < weighed < 64 * features
    slots = 3 * (8 + 4 * model.config.num_tokens)
    assert largest_recordings_bytes(model, sizes, graph=OFF, num_levels=3) == slots


def test_a_failed_step_ends_its_requests_and_a_failed_engine_ends_all(
    model: Qwen, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(model)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(engine._decode, "_inputs", broken)
        reply = ask(engine, PROMPTS[0])[0].wait()
        assert str(reply.deltas[-1].error) == "broken"
    assert ask(engine, PROMPTS[0])[0].wait().token_ids == expected[0]
    assert engine.stats().num_free_pages == 64
    assert engine.is_serving
    monkeypatch.setattr(engine._scheduler, "plan", broken)
    reply = ask(engine, PROMPTS[0])[0].wait()
    assert str(reply.deltas[-1].error) == "broken"
    engine._thread.join(30)
    assert not engine.is_serving
    with pytest.raises(Overloaded):
        ask(engine, [1])


def test_media_of_requests_that_wait_together_are_encoded_in_one_call(model: Qwen) -> None:
    calls: list[list[bytes]] = []
    is_held, may_go = threading.Event(), threading.Event()

    def encode(media: Sequence[Media]) -> None:
        calls.append([item.content for item in media])
        for item in media:
            item.rows = torch.zeros(item.num_rows, 4 * model.config.width)
        is_held.set()
        may_go.wait(30)

    def prompt(content: bytes) -> Prompt:
        return replace(
            Prompt.of_text([1, *content, 2, 3]), spans=(Span(1, 1, Media(content, 1, None)),)
        )

    engine = make_engine(model, encode=encode)
    replies = [ask(engine, prompt(b"a"))[0]]
    assert is_held.wait(30)
    replies += [ask(engine, prompt(content))[0] for content in (b"b", b"c")]
    may_go.set()
    for reply in replies:
        assert reply.wait().reason == "length"
    assert [len(call) for call in calls] == [1, 2]
    assert sorted(calls[1]) == [b"b", b"c"]
    engine.close()
