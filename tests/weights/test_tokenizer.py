"""A published tokenizer with its chat template, made on the spot."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.errors import WeightsError
from ostinato.weights.tokenizer import USER_TURN, PublishedTokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_an_instruction_is_one_user_turn_with_the_answers_opening(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    letters = {token: i for i, token in enumerate(sorted(ByteLevel.alphabet()))}
    core = Tokenizer(BPE(vocab=letters, merges=[]))
    core.pre_tokenizer = ByteLevel(add_prefix_space=False)
    core.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    theirs = PreTrainedTokenizerFast(tokenizer_object=core)
    theirs.chat_template = TEMPLATE
    theirs.save_pretrained(str(tmp_path))

    ours = PublishedTokenizer(tmp_path, pad_token=7)
    expected = core.encode(USER_TURN.format("pick up"), add_special_tokens=False).ids
    assert ours.encode("pick up") == expected and ours.pad_token == 7
    assert len(expected) < len(USER_TURN.format("pick up"))  # the special tokens are one each


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="the tokenizer cannot be read"):
        PublishedTokenizer(tmp_path, pad_token=7)
