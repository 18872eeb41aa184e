"""A chat of a loaded transformers model: the one of its checkpoint, without the way over files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
