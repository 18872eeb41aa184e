"""Instructions to token ids: a checkpoint's own tokenizer, or bytes for shipped tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ostinato.errors import WeightsError

USER_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class InstructionTokenizer(Protocol):
    """``pad_token`` fills captions up."""

    @property
    def pad_token(self) -> int: ...

    def encode(self, instruction: str) -> list[int]:
        """Ids of one user message in the chat template, with the answer's opening."""


class ByteTokenizer:
    """Every byte of the chat text is a token; 256 is padding."""

    pad_token = 256
    num_tokens = 257

    def encode(self, instruction: str) -> list[int]:
        return list(USER_TURN.format(instruction).encode())


class PublishedTokenizer:
    """The tokenizer and chat template in a directory or of a hub name."""

    def __init__(self, model: str | Path, *, pad_token: int) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(model))
        except (OSError, ValueError) as error:
            raise WeightsError(f"{model}: the tokenizer cannot be read: {error}") from error
        self.pad_token = pad_token

    def encode(self, instruction: str) -> list[int]:
        message = [{"role": "user", "content": instruction}]
        text = self._tokenizer.apply_chat_template(
            message, add_generation_prompt=True, tokenize=False
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
