"""Chats on the GPU, recorded, against transformers: fp32, and bf16 as close as its own variants.

The checkpoint's weights are rounded to bf16, so that all readings of it compute with the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import ostinato
from ostinato.kernels.gate import Numerics
from ostinato.vlm.chat import Chat, ChatResult
from tests.gpu.regions import DEVICE
from tests.lm.checkpoints import FAMILIES
from tests.vlm.checkpoints import make_checkpoint
from tests.vlm.equality import (
    CHATS,
    LENGTH,
    Steps,
    assert_same_choices,
    image,
    kept_steps,
    reference_logits,
    text,
    user,
)

pytestmark = [pytest.mark.gpu, pytest.mark.device]

TOLERANCE = 2e-4
"""Of a logit in fp32; they are up to some tens."""
FARTHER = 1.1
SCALE = 4
RECORDED = ostinato.GraphConfig(ladder_ratio=4.0)
OFF = ostinato.GraphConfig(mode="off")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def directory(family: str, tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp(family)
    make_checkpoint(family, path, scale=SCALE, dtype=torch.bfloat16)
    return path


@pytest.fixture(scope="module", autouse=True)
def _no_tf32() -> Iterator[None]:
    switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches


def reference(directory: Path, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    import transformers

    load = transformers.AutoModelForImageTextToText.from_pretrained
    return load(directory, dtype=dtype, attn_implementation=attention).to(DEVICE).eval()


@pytest.fixture(scope="module")
def exact(directory: Path) -> Any:
    return reference(directory, torch.float32)


def load(
    directory: Path,
    dtype: torch.dtype,
    graph: ostinato.GraphConfig = RECORDED,
    numerics: Numerics = "fast",
) -> Chat:
    return ostinato.load_chat(
        directory,
        device=DEVICE,
        dtype=dtype,
        graph=graph,
        numerics=numerics,
        max_length=1024,
        num_pages=256,
        prefill_rungs=(64, 256),
        decode_rungs=(1, 4),
        top_patches=1024,
    )


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[tuple[Chat, Steps]]:
    """bf16, recorded, every operator the fastest."""
    with kept_steps() as steps, load(directory, torch.bfloat16) as chat:
        yield chat, steps


def shares(chat: Chat) -> dict[str, float]:
    """How many of the calls were replays, by kind."""
    stats = chat.stats()
    found = {}
    for name, one in {"encoder": stats.encoder, **stats.engine.recordings}.items():
        replays = one.calls["exact"] + one.calls["rung"]
        found[name] = replays / max(replays + one.calls["direct"], 1)
    return found


def test_fp32_is_close_to_transformers_at_every_step(directory: Path, exact: Any) -> None:
    with kept_steps() as steps, load(directory, torch.float32) as chat:

        def check(given: Any, result: ChatResult, name: int) -> None:
            assert len(result.token_ids) == LENGTH
            prompt = chat._prompt(given)
            expected = reference_logits(exact, chat.config.vision, prompt, result.token_ids)
            assert float((steps.of(result, name) - expected).abs().max()) < TOLERANCE
            assert_same_choices(result.token_ids, expected, tolerance=TOLERANCE)

        for given in CHATS.values():
            check(given, *steps.generate(chat, given))
        with ThreadPoolExecutor(6) as pool:  # prefix hits, in batches that others join and leave
            kept = {name: pool.submit(steps.generate, chat, CHATS[name]) for name in CHATS}
            for i in range(3):
                leaving = user(image(64, 64 + i), text(f"leave {i}"))
                stream = chat.stream(leaving, max_tokens=200)
                next(iter(stream))
                stream.close()  # type: ignore[attr-defined]
            for name, future in kept.items():
                check(CHATS[name], *future.result())
        by_kind = shares(chat)
        assert min(by_kind["prefill"], by_kind["decode"]) == 1.0
        assert by_kind["encoder"] >= 0.3


def test_bf16_is_as_close_to_fp32_as_transformers_own_variants(
    directory: Path, exact: Any, served: tuple[Chat, Steps]
) -> None:
    ours, wanted, given_and_told = [], [], []
    chat, steps = served
    vision = chat.config.vision
    for given in CHATS.values():
        prompt = chat._prompt(given)
        result, name = steps.generate(chat, given)
        given_and_told.append((prompt, result.token_ids))
        ours.append(steps.of(result, name))
        wanted.append(reference_logits(exact, vision, prompt, result.token_ids))
    assert min(shares(chat).values()) >= 0.3
    expected = torch.cat(wanted)

    def distance(logits: list[torch.Tensor]) -> float:
        return float((torch.cat(logits) - expected).norm() / expected.norm())

    own = {}
    for attention in ("sdpa", "eager"):
        variant = reference(directory, torch.bfloat16, attention)
        own[attention] = distance(
            [reference_logits(variant, vision, *reply) for reply in given_and_told]
        )
    print(f"relative distance to fp32: ours {distance(ours):.2e}, {own}")
    assert 0 < distance(ours) <= FARTHER * max(own.values())


def replies(chat: Chat, steps: Steps, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Tokens, log-probabilities and the bytes of all logits of each chat."""
    found = []
    for name in names:
        result, request = steps.generate(chat, CHATS[name], 16)
        logits = steps.of(result, request).numpy().tobytes()
        found.append((result.token_ids, result.logprobs, logits))
    return found


def test_recorded_steps_are_bit_exact_to_direct_ones(
    directory: Path, served: tuple[Chat, Steps]
) -> None:
    """Text alone: the encoder may pad an image where it is recorded, and not where it is not."""
    recorded = replies(*served, ("text",))
    with kept_steps() as steps, load(directory, torch.bfloat16, OFF) as chat:
        assert replies(chat, steps, ("text",)) == recorded


def test_invariant_chats_are_bit_exact_to_direct_ones(directory: Path) -> None:
    found = []
    for graph in (RECORDED, OFF):
        with kept_steps() as steps, load(directory, torch.bfloat16, graph, "invariant") as chat:
            found.append(replies(chat, steps, tuple(CHATS)))
            if graph is RECORDED:
                assert min(shares(chat).values()) >= 0.3
    assert found[0] == found[1]
