"""Checkpoint directories as published ones are: transformers' weights, a tokenizer, a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.lm.checkpoints import make_model, save

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}"
    "{% else %}<|vision_start|><|{{ p.type }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def make_tokenizer() -> Any:
    """Byte level: 256 bytes, then Qwen's special tokens."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(BPE({c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, []))
    core.pre_tokenizer = ByteLevel(add_prefix_space=False)
    core.decoder = Decoder()
    core.add_special_tokens(list(SPECIALS))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_checkpoint(family: str, directory: Path, *, scale: int = 1, dtype: Any = None) -> Any:
    """Saves to ``directory``, rounded to ``dtype``; the transformers model itself."""
    model: Any = make_model(family, scale=scale)
    if dtype is not None:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    save(model, directory)
    make_tokenizer().save_pretrained(directory)
    return model
