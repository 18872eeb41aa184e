"""A tiny chat on the GPU: recorded steps equal direct ones, and nothing waits but for tokens."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ostinato
from ostinato.vlm.chat import Chat
from tests.gpu.regions import DEVICE, HAS_GPU

pytestmark = [pytest.mark.gpu, pytest.mark.device]

SIZES: dict[str, Any] = {
    "num_pages": 128,
    "max_length": 256,
    "decode_rungs": (1, 4),
    "prefill_rungs": (64,),
    "top_patches": 256,
}
ASKS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.9, "seed": 5, "top_p": 0.9, "logprobs": 0},
    {
        "temperature": 0.0,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "logprobs": 1,
    },
)


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    assert HAS_GPU
    with ostinato.load_chat("tiny-qwen3-vl", device=DEVICE, **SIZES) as made:
        yield made


def replies(chat: Chat) -> list[Any]:
    """In turns and all at once."""
    alone = [chat.generate("once upon", max_tokens=24, ignore_eos=True, **how) for how in ASKS]
    streams = [chat.stream("a time", max_tokens=24, ignore_eos=True, **how) for how in ASKS]
    return [*alone, *(list(stream) for stream in streams)]


def test_recorded_steps_are_bit_exact_to_direct_ones(chat: Chat) -> None:
    how = {"max_tokens": 24, "ignore_eos": True}
    recorded = [chat.generate("once upon", **how, **ask) for ask in ASKS]
    steps = chat.stats().engine.recordings
    for one in steps.values():
        assert one.calls["direct"] == 0 and one.calls["exact"] > 0, one.refusals
    off = ostinato.GraphConfig(mode="off")
    with ostinato.load_chat("tiny-qwen3-vl", device=DEVICE, graph=off, **SIZES) as direct:
        assert [direct.generate("once upon", **how, **ask) for ask in ASKS] == recorded


def test_no_step_waits_for_the_device_but_for_its_tokens(chat: Chat) -> None:
    want = replies(chat)
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = replies(chat)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert [one.token_ids for one in got[:3]] == [one.token_ids for one in want[:3]]
    assert [[d.token_ids for d in one] for one in got[3:]] == [
        [d.token_ids for d in one] for one in want[3:]
    ]


def test_a_step_is_begun_while_the_device_is_busy_with_the_last(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is followed by some 10 ms of sleep; the next is enqueued before that is over."""
    ends: list[torch.cuda.Event] = []
    is_over: list[bool] = []
    decode = chat._engine._decode

    def slowed(chunks: Any) -> Any:
        is_over.extend(end.query() for end in ends[-1:])
        found = decode(chunks)
        torch.cuda._sleep(20_000_000)
        ends.append(torch.cuda.Event())
        ends[-1].record()
        return found

    monkeypatch.setattr(chat._engine, "_decode", slowed)
    chat.generate("once upon", max_tokens=16, temperature=0.0, ignore_eos=True)
    monkeypatch.undo()
    assert len(is_over) == 14
    assert not any(is_over[2:])
