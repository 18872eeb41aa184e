"""What a checkpoint's generation_config.json says, and what a request says over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ostinato
from ostinato.cli.chat_wiring import ChatAdapter
from ostinato.errors import WeightsError
from ostinato.lm.contract import SamplingParams
from ostinato.serve.openai.asks import sampling_of
from ostinato.serve.openai.schemas import SamplingRequest
from ostinato.vlm.defaults import sampling_defaults
from ostinato.weights.files import LocalFiles
from tests.vlm.checkpoints import make_checkpoint

PUBLISHED = {
    "eos_token_id": [257, 256],
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 1,
    "repetition_penalty": 1.05,
    "transformers_version": "4.56.0",
}


def said(directory: Path, **fields: Any) -> LocalFiles:
    (directory / "generation_config.json").write_text(json.dumps(fields))
    return LocalFiles(directory)


def test_what_is_not_said_is_as_the_api_has_it(tmp_path: Path) -> None:
    assert sampling_defaults(LocalFiles(tmp_path)) == SamplingParams()
    assert sampling_defaults(said(tmp_path, temperature=None)) == SamplingParams()
    found = sampling_defaults(said(tmp_path, **PUBLISHED))
    assert found == SamplingParams(temperature=0.7, top_p=0.8, top_k=1, repetition_penalty=1.05)


@pytest.mark.parametrize("wrong", [{"top_k": "20"}, {"temperature": True}, {"top_p": 1.5}])
def test_a_wrong_value_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(WeightsError, match=f"generation_config.json: {next(iter(wrong))} is"):
        sampling_defaults(said(tmp_path, **wrong))


def test_a_chat_draws_as_its_checkpoint_says_unless_a_request_says_otherwise(
    tmp_path: Path,
) -> None:
    make_checkpoint("qwen3_vl", tmp_path)
    said(tmp_path, **PUBLISHED)
    graph = ostinato.GraphConfig(mode="off")
    sizes: dict[str, Any] = {"max_length": 128, "max_batch": 2, "num_pages": 16}
    with ostinato.load_chat(tmp_path, graph=graph, **sizes) as chat:
        assert chat.config.eos_ids == {256, 257, 258}  # the tokenizer's own among them
        how: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
        plain = chat.generate("once upon", seed=1, **how)
        # of one token there is one choice: the likeliest, whatever the seed
        assert chat.generate("once upon", seed=2, **how).token_ids == plain.token_ids
        same = {"temperature": 0.0, "repetition_penalty": 1.05}
        assert chat.generate("once upon", **same, **how).token_ids == plain.token_ids
        other = chat.generate("once upon", seed=2, top_k=0, top_p=1.0, temperature=1.5, **how)
        assert other.token_ids != plain.token_ids
        defaults = ChatAdapter("x", chat).defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.7, 0.8, 1)
    asked = sampling_of(SamplingRequest(temperature=0.2, top_k=-1), defaults)
    assert (asked.temperature, asked.top_p, asked.top_k) == (0.2, 0.8, 0)
    assert asked.repetition_penalty == 1.05
