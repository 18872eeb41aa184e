"""Both tokenizers of chats: the bytes of tiny models, and one in a checkpoint directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.errors import WeightsError
from ostinato.weights.chat_tokenizer import ByteChatTokenizer, PublishedChatTokenizer
from ostinato.weights.files import LocalFiles
from tests.vlm.checkpoints import make_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Grüße?"}]},
    {"role": "assistant", "content": "Ja."},
    {"role": "user", "content": [{"type": "video"}]},
]
RENDERED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Grüße?<|im_end|>\n"
    "<|im_start|>assistant\nJa.<|im_end|>\n"
    "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
    "<|im_start|>assistant\n"
)


def test_bytes_and_special_tokens() -> None:
    tokenizer = ByteChatTokenizer()
    assert tokenizer.render(MESSAGES) == RENDERED
    ids = tokenizer.encode("ä<|im_end|><|image_pad|>b")
    assert ids == [*"ä".encode(), 258, 261, ord("b")]
    assert tokenizer.decode(ids) == "äb"
    assert tokenizer.decode(ids, has_special=True) == "ä<|im_end|><|image_pad|>b"
    assert tokenizer.encode("b", adds_special=True) == [ord("b")]
    strs = [tokenizer.token_str(i) for i in (*b"a \n", 258, 999)]
    assert strs == ["a", "Ġ", "Ċ", "<|im_end|>", ""]


def test_a_published_tokenizer_with_its_template_and_its_ends(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    files = LocalFiles(tmp_path)
    tokenizer = PublishedChatTokenizer(tmp_path, files)
    assert tokenizer.render(MESSAGES) == RENDERED
    assert tokenizer.eos_ids == {258}
    ids = tokenizer.encode("Grüße<|im_end|>")
    assert ids[-1] == 258
    assert tokenizer.decode(ids) == "Grüße"
    assert tokenizer.decode(ids, has_special=True) == "Grüße<|im_end|>"
    assert "".join(map(tokenizer.token_str, ids)) == "GrÃ¼ÃŁe<|im_end|>"
    assert tokenizer.token_str(10**6) == ""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    assert PublishedChatTokenizer(tmp_path, files).eos_ids == {256, 258}
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(WeightsError, match="no chat template"):
        PublishedChatTokenizer(tmp_path, files)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "{{ 1 }}"}))
    assert PublishedChatTokenizer(tmp_path, files).render(MESSAGES) == "1"


def test_what_a_tokenizer_puts_around_a_text_is_there_where_asked_for(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    made = make_tokenizer()
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 257)]
    )
    made.save_pretrained(tmp_path)
    tokenizer = PublishedChatTokenizer(tmp_path, LocalFiles(tmp_path))
    assert tokenizer.encode("a", adds_special=True) == [257, *tokenizer.encode("a")]
    assert len(tokenizer.encode("a")) == 1
