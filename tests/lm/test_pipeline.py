"""Steps begun before the last one's tokens are read: penalties, and nothing kept of the surplus."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ostinato.lm import engine as engine_module
from ostinato.lm.contract import Batch, SamplingParams
from ostinato.lm.engine import Engine
from ostinato.lm.flight import Flight
from ostinato.lm.models.qwen import Qwen
from tests.lm.engines import GREEDY, Reply, ask, make_engine, tiny

PROMPTS = [[(7 * i + j) % 256 for j in range(n)] for i, n in enumerate((5, 40, 17, 22))]
BENT = replace(
    GREEDY,
    max_tokens=24,
    repetition_penalty=1.4,
    frequency_penalty=0.3,
    presence_penalty=0.2,
)


@pytest.fixture(scope="module")
def model() -> Qwen:
    return tiny()


@torch.inference_mode()
def logits_of(model: Qwen, ids: list[int]) -> list[float]:
    n, config = len(ids), model.config
    shape = (config.num_layers, 2, 1, n, config.num_kv_heads, config.head_dim)
    at = torch.arange(n)
    table, last = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([n - 1])
    batch = Batch(at.repeat(3, 1), at, table, torch.tensor([0, n]), torch.tensor([n]), last)
    x = model.embed(torch.tensor(ids))
    found: list[float] = model(x, batch, torch.zeros(shape), max_query_length=n)[0].tolist()
    return found


def bent_by_hand(model: Qwen, prompt: list[int], by: SamplingParams) -> list[int]:
    """Greedy tokens of logits that vLLM's formulas lower, in Python."""
    reply: list[int] = []
    for _ in range(by.max_tokens or 0):
        logits = logits_of(model, prompt + reply)
        for token in {*prompt, *reply}:
            old = logits[token]
            logits[token] = old / by.repetition_penalty if old > 0 else old * by.repetition_penalty
        for token in set(reply):
            logits[token] -= by.frequency_penalty * reply.count(token) + by.presence_penalty
        reply.append(max(range(len(logits)), key=logits.__getitem__))
    return reply


def test_penalties_are_the_formulas_in_any_batch_and_after_a_preemption(model: Qwen) -> None:
    want = [bent_by_hand(model, ids, BENT) for ids in PROMPTS]
    plain = bent_by_hand(model, PROMPTS[0], replace(GREEDY, max_tokens=24))
    assert want[0] != plain
    roomy, tight = make_engine(model), make_engine(model, num_pages=22, max_length=80)
    for engine in (roomy, tight):
        for _ in range(2):  # slots that others had before
            replies = [ask(engine, ids, BENT)[0] for ids in PROMPTS]
            other = ask(engine, PROMPTS[0], replace(GREEDY, max_tokens=24))[0]
            assert [r.wait().token_ids for r in replies] == want
            assert other.wait().token_ids == plain
    assert tight.stats().num_preempted > 0
    roomy.close()
    tight.close()


class Watched(Flight):
    """Notes when a step is begun and when its tokens are read."""

    events: list[str]

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.events.append("begun")

    def wait(self) -> None:
        self.events.append("read")
        super().wait()


def test_a_step_is_begun_before_the_last_ones_tokens_are_read(
    model: Qwen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "Flight", Watched)
    Watched.events = []
    engine = make_engine(model)
    ask(engine, PROMPTS[0], replace(GREEDY, max_tokens=5))[0].wait()
    engine.close()
    assert Watched.events == ["begun", *["begun", "read"] * 4, "read"]


def ended_by(engine: Engine, ids: list[int], stop: int) -> Reply:
    return ask(engine, ids, replace(GREEDY, stop_token_ids=(stop,), max_tokens=40))[0].wait()


def test_what_the_surplus_step_writes_is_never_found_in_the_cache(model: Qwen) -> None:
    engine = make_engine(model)
    prompt = PROMPTS[0]
    reply = bent_by_hand(model, prompt, replace(GREEDY, max_tokens=24))
    end = next(  # the end token fills a page, and the step after it writes its key
        i for i, t in enumerate(reply) if (len(prompt) + i + 1) % 4 == 0 and t not in reply[:i]
    )
    before = engine.stats().generated_tokens
    got = ended_by(engine, prompt, reply[end])
    assert (got.token_ids, got.reason) == (reply[: end + 1], "stop")
    assert engine.stats().generated_tokens - before == end + 1
    whole = prompt + reply[: end + 1]
    again, ticket = ask(engine, [*whole, 1, 2], replace(GREEDY, max_tokens=3))
    want = bent_by_hand(model, [*whole, 1, 2], replace(GREEDY, max_tokens=3))
    assert again.wait().token_ids == want
    assert ticket.cached_tokens == len(whole) - 4
    assert engine.stats().num_free_pages == 64
    engine.close()


def test_a_place_taken_while_the_surplus_step_is_under_way_is_its_own(model: Qwen) -> None:
    """Two places, many requests that end by a token: the next one takes the slot and the pages."""
    engine = make_engine(model, max_batch=2, num_pages=20, max_length=80)
    stops = []
    for ids in PROMPTS:
        reply = bent_by_hand(model, ids, replace(BENT, max_tokens=12))
        stops.append((ids, reply[: reply.index(reply[7]) + 1], reply[7]))
    for _ in range(3):
        replies = [
            ask(engine, ids, replace(BENT, stop_token_ids=(stop,)))[0] for ids, _, stop in stops
        ]
        assert [r.wait().token_ids for r in replies] == [want for _, want, _ in stops]
    assert engine.stats().num_free_pages == 20
    engine.close()
