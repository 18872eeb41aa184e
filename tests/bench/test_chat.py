"""The benchmark of chats on the CPU: both sides do the same work, and its figures are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ostinato
from bench import chat as bench
from bench.peers.transformers_chat import Peer, make_model
from ostinato.weights.chat_tokenizer import ByteChatTokenizer


def test_transformers_draws_the_same_tokens_from_the_same_weights() -> None:
    model = make_model(layers=3, device=torch.device("cpu"), dtype=torch.float32, is_tiny=True)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 8  # wide enough to tell tokens apart
    peer, pictures = Peer(model), bench.Pictures()
    off = ostinato.GraphConfig(mode="off")
    sizes: dict[str, Any] = {"num_pages": 64, "max_length": 512, "graph": off}
    with ostinato.load_chat(model, tokenizer=ByteChatTokenizer(), device="cpu", **sizes) as chat:
        answers = []
        for attention in ("sdpa", "eager"):
            image = pictures.of(256, 320)
            ours = chat.generate(bench.question(image), max_tokens=6, **bench.GREEDY)
            peer.use(attention)
            ids = chat.tokenize(bench.question(image))
            assert list(ours.token_ids) == peer.answer(image, ids, 6)
            answers.append(ours.token_ids)
    assert answers[0] != answers[1]  # each saw its own picture


@pytest.mark.slow
def test_sections_write_their_figures_one_by_one(tmp_path: Path) -> None:
    out = tmp_path / "chat.json"
    sections = "start,first_token,load"
    assert bench.main(["--dry", "--no-peer", "--sections", sections, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert list(rows["section_seconds"]) == ["model", *sections.split(",")]
    assert rows["start"]["recordings"]["decode"] == 2
    assert [row["image"] for row in rows["first_token"]] == ["256x256"]
    assert [(row["clients"], row["requests"]) for row in rows["load"]] == [(1, 1), (2, 4)]
    for row in rows["load"]:
        num_tokens = row["requests"] * 4
        assert row["tokens_per_s"] == pytest.approx(num_tokens / row["seconds"], rel=0.01)
        assert row["first_token"]["p50_ms"] <= row["first_token"]["p99_ms"]


def test_figures() -> None:
    found = bench.percentiles_ms([0.001 * n for n in range(101)])
    assert found == {"p50_ms": 50.0, "p99_ms": 99.0}
    row = {"ours_ms": 3.0, "transformers_sdpa_ms": 12.0, "transformers_eager_ms": 6.0}
    assert bench._with_ratio(row)["ratio"] == 0.5
