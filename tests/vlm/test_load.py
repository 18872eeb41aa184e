"""A chat of a loaded transformers model: the one of its checkpoint, without the way over files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import ostinato
from ostinato.errors import ConfigError
from ostinato.weights.chat_tokenizer import PublishedChatTokenizer
from ostinato.weights.files import LocalFiles
from tests.lm.checkpoints import FAMILIES
from tests.vlm.checkpoints import make_checkpoint
from tests.vlm.test_chat import png, question

OFF = ostinato.GraphConfig(mode="off")
SMALL: dict[str, Any] = {"max_length": 160, "num_pages": 24, "max_batch": 2, "graph": OFF}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_answers_as_its_checkpoint_does(tmp_path: Path, family: str) -> None:
    module = make_checkpoint(family, tmp_path)
    how: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "logprobs": 2, "ignore_eos": True}
    with ostinato.load_chat(tmp_path, device="cpu", **SMALL) as chat:
        want = chat.generate(question(png()), **how)
    tokenizer = PublishedChatTokenizer(tmp_path, LocalFiles(tmp_path))
    with ostinato.load_chat(module, tokenizer=tokenizer, device="cpu", **SMALL) as chat:
        assert chat.generate(question(png()), **how) == want
        head = chat._engine._decode.recorded._step.model.lm_head.weight  # type: ignore[attr-defined]
        assert head.data_ptr() == module.lm_head.weight.data_ptr()
    with pytest.raises(ConfigError, match="no tokenizer"):
        ostinato.load_chat(module, device="cpu")


@pytest.mark.parametrize(("model", "side"), [("tiny-qwen3-vl", 512), ("tiny-qwen2.5-vl", 448)])
def test_ordinary_images_are_served_by_recordings_on_a_cpu(model: str, side: int) -> None:
    held = io.BytesIO()
    Image.effect_noise((side, side), 60).save(held, "png")  # 1024 patches
    few: dict[str, Any] = {"prefill_rungs": (320,), "decode_rungs": (2,), "max_length": 512}
    with ostinato.load_chat(
        model, device="cpu", graph=ostinato.GraphConfig(ladder_ratio=8), **few
    ) as chat:
        chat.generate(question(held.getvalue()), max_tokens=1)
        calls = chat.stats().encoder.calls
        assert (calls["direct"], sum(calls.values())) == (0, 1), chat.stats().encoder.reasons


def test_prompts_that_are_not_cut_have_a_longest() -> None:
    with pytest.raises(ConfigError, match="max_chunk is -1; expected with max_length"):
        ostinato.load_chat("tiny-qwen3-vl", device="cpu", max_chunk=-1)
