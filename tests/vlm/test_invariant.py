"""``load_chat(numerics="invariant")``: whole chats with images are bit-exact in any company."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ostinato
from ostinato.vlm.chat import Chat, ChatResult

SMALL: dict[str, Any] = {
    "max_length": 256,
    "num_pages": 48,
    "max_batch": 4,
    "prefill_rungs": (16, 32),
    "top_patches": 64,
    "numerics": "invariant",
}


def picture(height: int, width: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return {"type": "image", "image": pixels, "channels": "last"}


def user(*parts: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    return [{"role": "user", "content": content}]


CHATS = (
    user("Hello"),
    user(picture(60, 60, 0), "What is this?"),
    user(picture(60, 60, 0), "What is this, and what is beside it?"),
    user("Compare ", picture(40, 90, 1), " and ", picture(120, 120, 2), "."),
    user("A long story. " * 8, picture(60, 60, 0)),
    user("A long story. " * 8, picture(60, 60, 3)),
)


def reply(chat: Chat, which: int) -> tuple[tuple[int, ...], bytes]:
    result: ChatResult = chat.generate(
        CHATS[which], max_tokens=10, temperature=0.0, ignore_eos=True, logprobs=5
    )
    assert result.logprobs is not None
    numbers = [v for one in result.logprobs for v in (one.logprob, *(t[1] for t in one.top))]
    return result.token_ids, np.array(numbers).tobytes()


@pytest.fixture(scope="module", params=["tiny-qwen3-vl", "tiny-qwen2.5-vl"])
def model(request: Any) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def alone(model: str) -> list[tuple[tuple[int, ...], bytes]]:
    found = []
    for which in range(len(CHATS)):
        graph = ostinato.GraphConfig(mode="off")
        with ostinato.load_chat(model, graph=graph, **SMALL) as chat:
            found.append(reply(chat, which))
    return found


@pytest.fixture(scope="module")
def chat(model: str) -> Iterator[Chat]:
    with ostinato.load_chat(model, graph=ostinato.GraphConfig(), **SMALL) as chat:
        yield chat


@pytest.mark.parametrize("seed", range(3))
def test_chats_in_any_company_have_their_own_bytes(chat: Chat, alone: Any, seed: int) -> None:
    order = [*range(len(CHATS))] * 2
    random.Random(seed).shuffle(order)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda which: reply(chat, which), order))
    assert replies == [alone[which] for which in order]


def test_equal_beginnings_are_shared_in_whole_chunks(chat: Chat, alone: Any) -> None:
    for which in (4, 5):
        reply(chat, which)
        before = chat.stats().engine.cached_tokens
        assert reply(chat, which) == alone[which]
        gained = chat.stats().engine.cached_tokens - before
        assert gained >= 64
        assert gained % 32 == 0


def test_every_call_is_recorded(chat: Chat) -> None:
    reply(chat, 0)
    steps = chat.stats().engine.recordings
    assert {name: s.calls["direct"] for name, s in steps.items()} == {"prefill": 0, "decode": 0}
    assert steps["decode"].num_recordings == 1
