"""The text encoder: one padded caption to the transformer's context, from taps of a decoder.

One caption per call: a batch would change the results of bf16 products. The tokenizer is
``weights``' business; ids come in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ostinato.layers.decoder import Decoder, DecoderConfig, decoder_tables, padded_causal_mask

PAD_TOKEN = 151643
"""Of the published text encoder; another tokenizer may say otherwise."""


def pad_ids(
    ids: Sequence[int], *, multiple: int, max_length: int, pad_token: int = PAD_TOKEN
) -> tuple[list[int], int]:
    """``ids`` cut to ``max_length``, filled up on the right to a multiple; how many are real.

    The multiple may be cut by ``max_length`` as well.
    """
    real = list(ids[:max_length])
    length = min(-(-max(len(real), 1) // multiple) * multiple, max_length)
    return real + [pad_token] * (length - len(real)), len(real)


class TextEncoder(nn.Module):
    """``taps``: layers whose inputs are joined; layers beyond the deepest are not built."""

    def __init__(self, config: DecoderConfig, taps: Sequence[int]) -> None:
        super().__init__()
        self.config = config
        self.taps = tuple(taps)
        self.decoder = Decoder(config, max(taps))

    @property
    def context_width(self) -> int:
        return len(self.taps) * self.config.width

    def forward(self, ids: Tensor, num_real: int) -> Tensor:
        """(L, taps * width) of ``ids`` (L,) int64, of which ``num_real`` are no padding.

        Positions run through the padding; its rows see the real tokens only.
        """
        dtype = self.decoder.embed_tokens.weight.dtype
        tables = decoder_tables(self.config, ids.shape[0], device=ids.device, dtype=dtype)  # type: ignore[arg-type]
        mask = padded_causal_mask(ids.shape[0], num_real, ids.device)
        return torch.cat(self.decoder(ids, tables, mask, self.taps), dim=-1)
