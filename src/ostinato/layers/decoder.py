"""A plain decoder over one whole sequence: grouped queries, normalised heads, rotary positions.

No cache, no head, no sampling: ids in, hidden states of chosen layers out. As Qwen3 has it, and
the text path of Qwen3-VL, whose three position axes agree on text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.kernels.norm import add_rms_norm, rms_norm
from ostinato.kernels.rope import rope
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.linear import Linear, unset
from ostinato.layers.visiting import call_on


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes; the defaults are those of Qwen3-VL-4B's text path."""

    width: int = 2560
    num_layers: int = 36
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    inner_width: int = 9728
    num_tokens: int = 151936
    theta: float = 5e6
    eps: float = 1e-6


class Scale(nn.Module):
    """An RMS norm's ``weight`` (width,)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = unset(width)


class DecoderAttention(nn.Module):
    """One projection for queries, keys and values; RMS norm per head; rotary halves."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv_proj = Linear(config.width, heads * config.head_dim, bias=False)
        self.o_proj = Linear(config.num_heads * config.head_dim, config.width, bias=False)
        self.q_norm = Scale(config.head_dim)
        self.k_norm = Scale(config.head_dim)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        config = self.config
        q, k, v = rope(
            self.qkv_proj(x),
            *tables,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            q_weight=self.q_norm.weight,
            k_weight=self.k_norm.weight,
            eps=config.eps,
        )
        group = config.num_heads // config.num_kv_heads
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        q_1HLD, k_1HLD, v_1HLD = (t.transpose(0, 1)[None] for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q_1HLD, k_1HLD, v_1HLD, attn_mask=mask)
        projected: Tensor = self.o_proj(mixed[0].transpose(0, 1).flatten(1))
        return projected


class DecoderMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))``, gate and up in one projection."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(width, 2 * inner_width, bias=False)
        self.down_proj = Linear(inner_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(swiglu(self.gate_up_proj(x)))
        return down


class DecoderLayer(nn.Module):
    """``x += attention(norm(x)); x += mlp(norm(x))``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.input_layernorm = Scale(config.width)
        self.self_attn = DecoderAttention(config)
        self.post_attention_layernorm = Scale(config.width)
        self.mlp = DecoderMlp(config.width, config.inner_width)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        attended = self.self_attn(rms_norm(x, self.input_layernorm.weight, self.eps), tables, mask)
        normed, x = add_rms_norm(x, attended, self.post_attention_layernorm.weight, self.eps)
        total: Tensor = x + self.mlp(normed)
        return total


class Decoder(nn.Module):
    """``num_layers`` may be fewer than the checkpoint has: as many as the deepest tap needs."""

    def __init__(self, config: DecoderConfig, num_layers: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Module()
        self.embed_tokens.weight = unset(config.num_tokens, config.width)
        count = config.num_layers if num_layers is None else num_layers
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(count))

    def forward(
        self, ids: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor, taps: Sequence[int]
    ) -> list[Tensor]:
        """The input of layer k for each k in ``taps``, un-normed; beyond the last, its output.

        ``ids``: (L,) int64; ``tables``: cosines and sines (L, head_dim / 2) of the model's dtype;
        ``mask``: (L, L) bool, true where a row may look. Each result is (L, width). The device is
        that of ``ids``; layers that lie elsewhere visit it one by one.
        """
        table: Tensor = self.embed_tokens.weight  # type: ignore[assignment]
        x = F.embedding(ids.to(table.device), table).to(ids.device)
        found = {0: x}
        for i, layer in enumerate(self.layers, 1):
            x = call_on(ids.device, layer, x, tables, mask)
            found[i] = x
        return [found[k] for k in taps]


def decoder_tables(
    config: DecoderConfig, length: int, *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (L, head_dim / 2) of positions 0..L-1, made in float32, then rounded."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.arange(length, dtype=torch.float32)[:, None] * (1.0 / config.theta**exponents)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def padded_causal_mask(length: int, num_real: int, device: torch.device) -> Tensor:
    """(L, L) bool: a row sees itself and what is before it, and of that the real tokens only.

    Padding follows the ``num_real`` (at least 1) tokens; its rows see the tokens, never padding.
    """
    at = torch.arange(length, device=device)
    return (at[None, :] <= at[:, None]) & (at < num_real)[None, :]
