"""The diffusion transformer: blocks of one stream alone (mode), then of all streams joined.

Every stream has its own embedding, mode blocks, modulations and head; joint blocks are shared and
modulated row by row. Attention and MLP of a block stand side by side. No biases. Rows are (T, W)
of the model's dtype; a batch is always one. Parameters keep their published names.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.kernels.dense_attention import dense_attention
from ostinato.kernels.gate_residual import gate_residual
from ostinato.kernels.rope import rope
from ostinato.layers.fp8 import Fp8Linear, gated, make_linear, modulated
from ostinato.layers.linear import unset
from ostinato.policy.flux3_action.config import DitConfig

EPS = 1e-6
TIME_WIDTH = 256
TEXT = "txt"
Tables = tuple[Tensor, Tensor]


class Modulation(NamedTuple):
    """Each (n, W): one row for a stream alone, one row per stream for the joint blocks."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


class Encoded(NamedTuple):
    """A stream after its mode blocks: ``hidden`` (T, W), and its row of the joint modulation."""

    hidden: Tensor
    joint: Modulation


class HeadScale(nn.Module):
    """``scale`` (head_dim,) of a head's RMS norm."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = unset(head_dim)


class HeadNorms(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.query_norm = HeadScale(head_dim)
        self.key_norm = HeadScale(head_dim)


class Block(nn.Module):
    """``x += gate * (attn_out(attention) + mlp_out(silu(g) * w))`` of one modulated projection.

    ``qkv_mlp`` stacks q, k, v and both halves of the MLP, in this order.
    """

    def __init__(self, config: DitConfig, *, is_fp8: bool) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.inner_width
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.qkv_mlp = make_linear(width, 3 * width + 2 * inner, is_fp8=is_fp8)
        self.attn_out = make_linear(width, width, is_fp8=is_fp8)
        self.mlp_out = make_linear(inner, width, is_fp8=is_fp8)
        self.norm = HeadNorms(config.head_dim)

    def forward(
        self, x: Tensor, modulation: Modulation, tables: Tables, segments: Tensor | None
    ) -> Tensor:
        """``segments`` (T,) int32 names each row's modulation; without it there is one."""
        shift, scale, gate = modulation
        projected = modulated(self.qkv_mlp, x, scale, shift, segments=segments, eps=EPS)
        width = x.shape[1]
        # nothing keeps q, k and v of a joint block while the MLP needs its memory
        mixed = dense_attention(*self._heads(projected[:, : 3 * width], tables))
        attended = self.attn_out(mixed.flatten(1))
        del mixed
        fed = gated(self.mlp_out, projected[:, 3 * width :])
        return gate_residual(x, attended, gate, plus=fed, segments=segments)

    def _heads(self, qkv: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v (T, heads, head_dim); q and k normalised and rotated."""
        return rope(
            qkv,
            *tables,
            heads=self.num_heads,
            head_dim=self.head_dim,
            style="adjacent",
            q_weight=self.norm.query_norm.scale,
            k_weight=self.norm.key_norm.scale,
            eps=EPS,
        )


class Embedder(nn.Module):
    """``out_layer(silu(in_layer(x)))``."""

    def __init__(self, num_inputs: int, width: int, *, is_fp8: bool) -> None:
        super().__init__()
        self.in_layer = make_linear(num_inputs, width, is_fp8=is_fp8)
        self.out_layer = make_linear(width, width, is_fp8=is_fp8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out_layer(F.silu(self.in_layer(x)))
        return out


class Modulator(nn.Module):
    """``lin(code)`` (1, 3 W) as shift, scale and gate; see ``Transformer.time_code``."""

    def __init__(self, width: int, *, is_fp8: bool) -> None:
        super().__init__()
        self.lin = make_linear(width, 3 * width, is_fp8=is_fp8)

    def forward(self, code: Tensor) -> Modulation:
        return Modulation(*self.lin(code).chunk(3, dim=-1))


class Head(nn.Module):
    """A modulated norm, shift before scale, and a projection to the stream's channels."""

    def __init__(self, width: int, channels: int, *, is_fp8: bool) -> None:
        super().__init__()
        self.linear = make_linear(width, channels, is_fp8=is_fp8)
        # the published name is adaLN_modulation.1: a list whose first entry holds nothing
        self.adaLN_modulation = nn.ModuleList(
            [nn.Identity(), make_linear(width, 2 * width, is_fp8=is_fp8)]
        )

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation[1](code).chunk(2, dim=-1)
        return modulated(self.linear, x, scale, shift, segments=None, eps=EPS)


class Transformer(nn.Module):
    """All streams. ``noised`` names the streams with a head: video and actions.

    With ``is_fp8`` the product layers are E4M3 but for the action streams' embedding, modulations
    and head, which stay in bf16. The published term of a zero vector is exactly zero without
    biases, so ``vector_in`` is not built.
    """

    frequencies: Tensor

    def __init__(self, config: DitConfig, streams: Sequence[str], *, is_fp8: bool = False) -> None:
        super().__init__()
        self.config = config
        self.video, self.video_cond, self.action, self.action_cond = streams
        width = config.hidden_size
        in_fp8 = {s: is_fp8 and s in (TEXT, self.video, self.video_cond) for s in (TEXT, *streams)}

        def blocks(count: int) -> nn.ModuleList:
            return nn.ModuleList(Block(config, is_fp8=is_fp8) for _ in range(count))

        def modulators() -> nn.ModuleDict:
            return nn.ModuleDict({s: Modulator(width, is_fp8=f) for s, f in in_fp8.items()})

        self.emb_in = nn.ModuleDict(
            {s: make_linear(config.channels(s), width, is_fp8=in_fp8[s]) for s in streams}
        )
        self.txt_in = make_linear(config.context_in_dim, width, is_fp8=is_fp8)
        self.time_in = Embedder(TIME_WIDTH, width, is_fp8=is_fp8)
        self.early_stream_modulations = modulators()
        self.single_stream_modulations = modulators()
        self.content_mode_blocks = nn.ModuleDict({s: blocks(config.depth) for s in streams})
        self.txt_mode_blocks = blocks(config.depth)
        self.single_blocks = blocks(config.depth_single_blocks)
        self.final_layer = nn.ModuleDict(
            {
                s: Head(width, config.channels(s), is_fp8=in_fp8[s])
                for s in (self.video, self.action)
            }
        )
        half = TIME_WIDTH // 2
        steps = torch.arange(half, dtype=torch.float32)
        self.register_buffer("frequencies", torch.exp(-log(10000) * steps / half), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Of rows between layers; FP8 layers take and give bf16."""
        return self.single_stream_modulations[self.action].lin.weight.dtype  # type: ignore

    def time_code(self, time: Tensor | None = None) -> Tensor:
        """``silu(vec)`` (1, W), what modulations and heads take; ``time``: (1,) float32 in [0, 1].

        Without a time it is that of text and conditions: zero.
        """
        if time is None:
            time = torch.zeros_like(self.frequencies[:1])
        angles = 1000 * time[:, None] * self.frequencies
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return F.silu(self.time_in(waves.to(self.dtype)))

    def encode_text(self, context: Tensor, tables: Tables) -> Encoded:
        """``context``: (L, context_in_dim). Time is zero."""
        code = self.time_code()
        return self._encode(TEXT, self.txt_in(context), self.txt_mode_blocks, code, tables)

    def encode_stream(self, stream: str, tokens: Tensor, code: Tensor, tables: Tables) -> Encoded:
        """``tokens``: (T, channels), cast to the model's dtype; ``code``: of the stream's time."""
        rows = self.emb_in[stream](tokens.to(self.dtype))
        blocks = self.content_mode_blocks[stream]
        return self._encode(stream, rows, blocks, code, tables)

    def _encode(self, stream: str, x: Tensor, blocks: Any, code: Tensor, tables: Tables) -> Encoded:
        early = self.early_stream_modulations[stream](code)
        for block in blocks:
            x = block(x, early, tables, None)
        return Encoded(x, self.single_stream_modulations[stream](code))

    def denoise(
        self, streams: Sequence[Encoded], code: Tensor, tables: Tables, segments: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Velocities of video (V, C) and actions (K, D), of the model's dtype.

        ``streams``: text, video, its condition, actions, their condition; ``tables`` and
        ``segments`` cover all their rows in this order; ``code`` is of the noised streams' time.
        """
        joint = Modulation(*(torch.cat(rows) for rows in zip(*(s.joint for s in streams))))  # noqa: B905
        x = torch.cat([s.hidden for s in streams])
        for block in self.single_blocks:
            x = block(x, joint, tables, segments)
        parts = x.split([s.hidden.shape[0] for s in streams])
        video: Tensor = self.final_layer[self.video](parts[1], code)
        actions: Tensor = self.final_layer[self.action](parts[3], code)
        return video, actions


def is_quantised(module: nn.Module) -> bool:
    """True when any layer is E4M3."""
    return any(isinstance(m, Fp8Linear) for m in module.modules())
