"""Prompts: the chat template's text, placeholders expanded by what the encoder will return.

A video of Qwen3-VL is frame by frame, each behind its time in words; one of Qwen2.5-VL is one
block whose frames stand apart in time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ostinato.errors import InputError, RefusedItem, WeightsError
from ostinato.lm.contract import Media, Prompt, Span
from ostinato.vision.preprocess import Patches, Preprocessor
from ostinato.vlm.messages import PLACEHOLDERS, check_text, read_messages
from ostinato.vlm.positions import Block, rope_positions
from ostinato.weights.chat_tokenizer import ChatTokenizer

START, END = "<|vision_start|>", "<|vision_end|>"
_PLACEHOLDER = re.compile("(" + "|".join(map(re.escape, PLACEHOLDERS.values())) + ")")


@dataclass(frozen=True)
class PromptConfig:
    """``frame_by_frame``: videos as Qwen3-VL has them; ``tokens_per_second``: positions that a
    second of video takes otherwise.
    """

    image_token_id: int
    video_token_id: int
    merge_size: int
    frame_by_frame: bool
    tokens_per_second: int


class _Part(NamedTuple):
    """What one placeholder becomes."""

    media: Media
    first: int
    frames: int
    rows: int
    columns: int
    interval: int


class Assembler:
    """Messages to prompts; safe to call from any number of threads."""

    def __init__(
        self, config: PromptConfig, tokenizer: ChatTokenizer, preprocessor: Preprocessor
    ) -> None:
        for kind, expected in (("image", config.image_token_id), ("video", config.video_token_id)):
            found = tokenizer.encode(PLACEHOLDERS[kind])
            if found != [expected]:
                raise WeightsError(
                    f"the tokenizer reads {PLACEHOLDERS[kind]} as {found}; config.json says "
                    f"{kind}_token_id is {expected}"
                )
        self._config = config
        self._tokenizer = tokenizer
        self._preprocessor = preprocessor

    def of_text(self, text: str, *, adds_special: bool = False) -> Prompt:
        """A prompt without a template and without media; see ``ChatTokenizer.encode``."""
        check_text(text, "the prompt")
        return Prompt.of_text(self._tokenizer.encode(text, adds_special=adds_special))

    def of_ids(self, token_ids: Sequence[int]) -> Prompt:
        """A prompt that is tokens already; media have no place in it."""
        for name in ("image_token_id", "video_token_id"):
            if getattr(self._config, name) in token_ids:
                raise InputError(f"the prompt holds {name}, which stands for media only")
        return Prompt.of_text(list(token_ids))

    def of_messages(self, messages: object) -> Prompt:
        """A chat; its images and videos are decoded and cut into patches here, and encoded later.

        Raises ``InputError`` naming the message and what is wrong; ``RefusedItem`` for a text, an
        image or a video, with its place.
        """
        read, shown = read_messages(messages)
        text = self._tokenizer.render(read)
        patches: list[Patches] = []
        for one, result in zip(
            shown, self._preprocessor.batch([one.item for one in shown]), strict=True
        ):
            if isinstance(result, InputError):
                raise RefusedItem(one.place, result)
            patches.append(result)
        return self._assemble(text, patches)

    def _assemble(self, text: str, patches: Sequence[Patches]) -> Prompt:
        pieces = _PLACEHOLDER.split(text)
        kinds = [PLACEHOLDERS[p.kind] for p in patches]
        if pieces[1::2] != kinds:
            raise InputError(
                f"the chat template made {len(pieces) // 2} placeholders of {len(kinds)} images "
                "and videos; expected one for each, in order"
            )
        parts: list[_Part] = []
        whole = pieces[0]
        for i, one in enumerate(patches):
            after = pieces[2 * i + 2]
            own = self._parts(one)
            parts += own
            if one.kind == "video" and self._config.frame_by_frame:
                if whole.endswith(START) and after.startswith(END):
                    whole, after = whole.removesuffix(START), after.removeprefix(END)
                whole += "".join(
                    f"<{seconds:.1f} seconds>{START}{kinds[i]}{END}" for seconds in one.timestamps
                )
            else:
                whole += kinds[i]
            whole += after
        return self._expand(self._tokenizer.encode(whole), parts)

    def _parts(self, patches: Patches) -> list[_Part]:
        frames, rows, columns = patches.grid_thw
        rows, columns = rows // self._config.merge_size, columns // self._config.merge_size
        media = Media(_digest(patches), frames * rows * columns, patches)
        if patches.kind == "image":
            return [_Part(media, 0, frames, rows, columns, 1)]
        if self._config.frame_by_frame:
            area = rows * columns
            return [_Part(media, i * area, 1, rows, columns, 1) for i in range(frames)]
        # whole seconds: the published model drops the rest
        seconds = int(patches.seconds_per_grid or 0)
        interval = self._config.tokens_per_second * seconds
        return [_Part(media, 0, frames, rows, columns, interval)]

    def _expand(self, ids: Sequence[int], parts: Sequence[_Part]) -> Prompt:
        placeholders = {self._config.image_token_id, self._config.video_token_id}
        expanded: list[int] = []
        blocks: list[Block] = []
        spans: list[Span] = []
        following = iter(parts)
        for token in ids:
            if token not in placeholders:
                expanded.append(token)
                continue
            part = next(following)
            block = Block(len(expanded), part.frames, part.rows, part.columns, part.interval)
            blocks.append(block)
            spans.append(Span(block.start, block.length, part.media, part.first))
            expanded += [token] * block.length
        positions = rope_positions(len(expanded), blocks)
        return Prompt(tuple(expanded), positions, tuple(spans))


def _digest(patches: Patches) -> bytes:
    """Of the values that the tower will see and of their grid."""
    digest = hashlib.sha256(repr((patches.kind, patches.grid_thw)).encode())
    digest.update(np.ascontiguousarray(patches.pixel_values).data)
    return digest.digest()
