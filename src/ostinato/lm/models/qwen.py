"""Qwen2 and Qwen3 decoders over a paged cache, with positions on three axes (M-RoPE).

The two differ in one place: Qwen2's projections of queries, keys and values have a bias, Qwen3
normalises queries and keys per head. DeepStack features are added after the first layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.kernels.linear import linear
from ostinato.kernels.rope import rope
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.decoder import Scale
from ostinato.layers.fp8 import project
from ostinato.layers.linear import Linear, unset
from ostinato.layers.norm import RMSNorm
from ostinato.lm.attention import Attend, attend
from ostinato.lm.contract import Batch, LmConfig
from ostinato.weights.stacked import Part, Parts

Tables = tuple[Tensor, Tensor]


def rope_axes(config: LmConfig) -> Tensor:
    """(head_dim / 2,) int64: the axis (0 time, 1 row, 2 column) that each frequency turns with."""
    sections = config.rope_sections
    if not config.is_interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    axes = torch.zeros(config.head_dim // 2, dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


class Attention(nn.Module):
    """One projection for queries, keys and values; the output projection is left to the norm."""

    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv_proj = Linear(config.width, heads * config.head_dim, bias=config.has_qkv_bias)
        self.o_proj = Linear(config.num_heads * config.head_dim, config.width, bias=False)
        if config.has_head_norm:
            self.q_norm = Scale(config.head_dim)
            self.k_norm = Scale(config.head_dim)

    def forward(
        self,
        x: Tensor,
        tables: Tables,
        batch: Batch,
        cache: Tensor,
        max_query_length: int,
        attend: Attend,
    ) -> Tensor:
        """(T, heads * head_dim), not projected yet. ``cache``: this layer's keys and values."""
        config = self.config
        has_norm = config.has_head_norm
        q, k, v = rope(
            linear(x, self.qkv_proj.weight, self.qkv_proj.bias),
            *tables,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            q_weight=self.q_norm.weight if has_norm else None,
            k_weight=self.k_norm.weight if has_norm else None,
            eps=config.eps if has_norm else None,
        )
        mixed_THD = attend(
            *(q, k, v, cache, batch),
            max_query_length=max_query_length,
            scale=config.head_dim**-0.5,
        )
        return mixed_THD.flatten(1)


class Mlp(nn.Module):
    """``down(silu(gate(x)) * up(x))``, gate and up in one projection."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_up_proj = Linear(width, 2 * inner_width, bias=False)
        self.down_proj = Linear(inner_width, width, bias=False)


class Layer(nn.Module):
    """``x += attention(norm(x)); x += mlp(norm(x))``; each sum runs with the norm after it."""

    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, eps=config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, eps=config.eps)
        self.mlp = Mlp(config.width, config.inner_width)


class Qwen(nn.Module):
    """See ``LanguageModel``."""

    frequencies: Tensor
    axes: Tensor

    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Module()
        self.embed_tokens.weight = unset(config.num_tokens, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width, eps=config.eps)
        if not config.is_tied:
            self.lm_head = Linear(config.width, config.num_tokens, bias=False)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.register_buffer("frequencies", 1.0 / config.theta**exponents, persistent=False)
        self.register_buffer("axes", rope_axes(config), persistent=False)

    @property
    def table(self) -> Tensor:
        """(num_tokens, width): an embedding for each token."""
        weight: Tensor = self.embed_tokens.weight  # type: ignore[assignment]
        return weight

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)

    def tables(self, positions: Tensor) -> Tables:
        """Cosines and sines (T, head_dim / 2), made in float32, rounded to the model's dtype."""
        along_T = positions.index_select(0, self.axes).float()
        angles = (along_T * self.frequencies[:, None]).T.contiguous()
        dtype = self.table.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        cache: Tensor,
        *,
        max_query_length: int,
        deepstack: tuple[Tensor, ...] = (),
        attend: Attend = attend,
    ) -> Tensor:
        tables = self.tables(batch.positions)
        layers: list[Layer] = list(self.layers)  # type: ignore[arg-type]
        normed = layers[0].input_layernorm(x)
        for i, layer in enumerate(layers):
            mixed = layer.self_attn(normed, tables, batch, cache[i], max_query_length, attend)
            normed, x = layer.post_attention_layernorm.after(layer.self_attn.o_proj, mixed, x)
            mlp = layer.mlp
            inner = swiglu(project(mlp.gate_up_proj, normed))
            is_last = i + 1 == len(layers)
            next_norm = self.norm if is_last else layers[i + 1].input_layernorm
            if i < len(deepstack):  # rounded where the published model rounds
                x = (x + linear(inner, mlp.down_proj.weight)) + deepstack[i]
                normed = next_norm(x)
            else:
                normed, x = next_norm.after(mlp.down_proj, inner, x)
        head = self.table if self.config.is_tied else self.lm_head.weight
        return linear(normed.index_select(0, batch.rows), head)


def published_parts(model: Qwen, *, prefix: str) -> Parts:
    """Each parameter with the stored tensors that it stacks; ``prefix`` stands before all but the
    head's name.
    """
    config = model.config
    q, kv = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    split = {
        "qkv_proj": (("q_proj", q), ("k_proj", kv), ("v_proj", kv)),
        "gate_up_proj": (("gate_proj", config.inner_width), ("up_proj", config.inner_width)),
    }
    parts: dict[str, list[Part]] = {}
    for name, parameter in model.named_parameters():
        full = name if name.startswith("lm_head.") else prefix + name
        packed = next((p for p in split if f".{p}." in name), None)
        if packed is None:
            parts[name] = [Part(full, tuple(parameter.shape))]
        else:
            rest = tuple(parameter.shape[1:])
            parts[name] = [
                Part(full.replace(packed, own), (rows, *rest)) for own, rows in split[packed]
            ]
    return parts
