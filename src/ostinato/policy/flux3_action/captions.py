"""What is kept of instructions: the text stream of each, bounded by tokens.

Entries own their memory: they come from direct calls and are never a buffer that a replay
overwrites. The oldest unused go first.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from ostinato.layers.visiting import send_home
from ostinato.policy.flux3_action.load import Loaded
from ostinato.policy.flux3_action.model import Caption
from ostinato.policy.flux3_action.text import pad_ids


class Captions:
    """Encodes instructions, one at a time, and keeps at most ``max_tokens`` tokens of them.

    ``offload``: the text encoder stays on the host; its layers visit the device one by one. Not
    for use by two threads at once.
    """

    def __init__(self, loaded: Loaded, device: torch.device, max_tokens: int, *, offload: bool):
        self._loaded = loaded
        self._device = device
        self._max_tokens = max_tokens
        self._kept: OrderedDict[str, Caption] = OrderedDict()
        self.num_tokens = 0
        if offload:
            send_home(loaded.text)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, instruction: str, *, use_cache: bool = True) -> tuple[Caption, bool]:
        """The caption, and whether it was there already."""
        kept = self._kept.get(instruction) if use_cache else None
        if kept is not None:
            self._kept.move_to_end(instruction)
            return kept, True
        made = self._encode(instruction)
        if use_cache:
            self._keep(instruction, made)
        return made, False

    def blank(self, num_tokens: int) -> Caption:
        """A caption of so many rows and no meaning, to record with. It is not kept."""
        width = self._loaded.config.dit.context_in_dim
        context = torch.zeros(
            num_tokens, width, device=self._device, dtype=self._loaded.model.dit.dtype
        )
        return self._loaded.model.caption(context)

    def _encode(self, instruction: str) -> Caption:
        loaded, config = self._loaded, self._loaded.config
        ids, num_real = pad_ids(
            loaded.tokenizer.encode(instruction),
            multiple=config.text_pad_multiple,
            max_length=config.text_max_length,
            pad_token=loaded.tokenizer.pad_token,
        )
        context = loaded.text(torch.tensor(ids, device=self._device), num_real)
        return loaded.model.caption(context)

    def _keep(self, instruction: str, made: Caption) -> None:
        num = made.cos.shape[0]
        while self._kept and self.num_tokens + num > self._max_tokens:
            _, oldest = self._kept.popitem(last=False)
            self.num_tokens -= oldest.cos.shape[0]
        if num <= self._max_tokens:
            self._kept[instruction] = made
            self.num_tokens += num
