"""The model written a second time from its specification: plain, float64, by published names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.policy.flux3_action.config import ActionConfig
from ostinato.policy.flux3_action.vae import VaeConfig

Weights = Mapping[str, Tensor]


def rms(x: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


# -- video VAE ------------------------------------------------------------------------------------


def window_mask(height: int, width: int, window: int) -> Tensor:
    """(cells, cells): true where a query may see a key."""

    def axis(length: int) -> Tensor:
        k = min(window, length)
        seen = torch.zeros(length, length, dtype=torch.bool)
        for i in range(length):
            start = min(max(i - k // 2, 0), length - k)
            seen[i, start : start + k] = True
        return seen

    y, x = axis(height), axis(width)
    return (y[:, None, :, None] & x[None, :, None, :]).reshape(height * width, -1)


def vae_block(w: Weights, p: str, x: Tensor, num_heads: int, window: int) -> Tensor:
    height, width, dim = x.shape
    head = dim // num_heads
    n = head // 8
    f = torch.tensor([256 ** (-2 * j / (head / 4)) for j in range(n)], dtype=x.dtype)
    y = torch.arange(height, dtype=x.dtype).repeat_interleave(width)
    c = torch.arange(width, dtype=x.dtype).repeat(height)
    zero = torch.zeros(height * width, n, dtype=x.dtype)
    angles = torch.cat((zero, y[:, None] * f, c[:, None] * f, zero), -1)
    angles = torch.cat((angles, angles), -1)[:, None]

    def turn(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return t * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

    normed = F.layer_norm(x, (dim,), w[p + "norm1.weight"], w[p + "norm1.bias"], 1e-5)
    qkv = normed.flatten(0, 1) @ w[p + "attn.qkv.weight"].T + w[p + "attn.qkv.bias"]
    q, k, v = qkv.view(-1, 3, num_heads, head).unbind(1)
    q, k = turn(rms(q, 1e-5)), turn(rms(k, 1e-5))
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(head)
    scores = scores.masked_fill(~window_mask(height, width, window), float("-inf"))
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(height, width, dim)
    x = x + mixed @ w[p + "attn.proj.weight"].T + w[p + "attn.proj.bias"]
    normed = F.layer_norm(x, (dim,), w[p + "norm2.weight"], w[p + "norm2.bias"], 1e-5)
    gate, up = (normed @ w[p + "mlp.gate_up_proj.weight"].T).chunk(2, -1)
    return x + (F.silu(gate) * up) @ w[p + "mlp.down_proj.weight"].T


def merge(w: Weights, p: str, x: Tensor) -> Tensor:
    x = F.pad(x, (0, 0, 0, x.shape[1] % 2, 0, x.shape[0] % 2))
    x = torch.cat((x[0::2, 0::2], x[0::2, 1::2], x[1::2, 0::2], x[1::2, 1::2]), -1)
    x = F.layer_norm(x, x.shape[-1:], w[p + "norm.weight"], w[p + "norm.bias"], 1e-5)
    return x @ w[p + "reduction.weight"].T


def merge_time(w: Weights, p: str, x_THWC: Tensor) -> Tensor:
    if x_THWC.shape[0] % 2:
        x_THWC = torch.cat((x_THWC[:1], x_THWC))
    first, second = x_THWC[0::2], x_THWC[1::2]
    x = torch.cat((first, second), -1)
    x = F.layer_norm(x, x.shape[-1:], w[p + "norm.weight"], w[p + "norm.bias"], 1e-5)
    return x @ w[p + "reduction.weight"].T + (first + second) / 2


def encode_frame(w: Weights, config: VaeConfig, canvas: Tensor) -> Tensor:
    """(rows, columns, z) of ``canvas`` (1, 3, H, W)."""
    p = "model.encoder."
    canvas = F.pad(canvas, (0, -canvas.shape[3] % 4, 0, -canvas.shape[2] % 4))
    stem = (w[p + "patch_embed.proj.weight"], w[p + "patch_embed.proj.bias"])
    x = F.conv3d(canvas[:, :, None], *stem, stride=(1, 4, 4))[0, :, 0].permute(1, 2, 0)
    i = 0
    for stage, depth in enumerate(config.depths):
        heads = config.num_heads[stage]
        for j in range(depth):
            x = vae_block(w, f"{p}features.{i}.{j}.", x, heads, config.window)
        i += 1
        if stage < len(config.depths) - 1:
            x = merge(w, f"{p}features.{i}.", x)
            heads = config.num_heads[stage + 1]
            i += 1
        if config.temporal[stage]:
            x = vae_block(w, f"{p}features.{i}.", x, heads, config.window)
            x = merge_time(w, f"{p}features.{i + 1}.", x[None])[0]
            i += 2
    moments = x @ w[p + "proj.weight"].T + w[p + "proj.bias"]
    mean, var = w["model.z_normalizer.running_mean"], w["model.z_normalizer.running_var"]
    return (moments[..., : config.z_dim] - mean) / var.sqrt()


# -- transformer ----------------------------------------------------------------------------------


class PlainDit:
    """One full forward: every stream, every block, for one caption."""

    def __init__(self, w: Weights, config: ActionConfig) -> None:
        self.w, self.config, self.dit = w, config, config.dit

    def lin(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w[f"dit.{name}.weight"].T

    def vec(self, t: float, dtype: torch.dtype) -> Tensor:
        f = torch.tensor([math.exp(-math.log(10000) * j / 128) for j in range(128)], dtype=dtype)
        angles = 1000 * t * f
        code = torch.cat((angles.cos(), angles.sin()))[None]
        return self.lin("time_in.out_layer", F.silu(self.lin("time_in.in_layer", code)))

    def rope(self, ids: Tensor, x: Tensor) -> Tensor:
        """Adjacent pairs as complex numbers."""
        angles = torch.cat(
            [
                ids[:, a, None].double()
                * self.dit.theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
                for a, d in enumerate(self.dit.axes_dim)
            ],
            -1,
        )
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).double().contiguous())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.view_as_real(turned).flatten(-2)

    def block(self, p: str, x: Tensor, rows: list[tuple[Tensor, int]], ids: Tensor) -> Tensor:
        """``rows``: a modulation (1, 3 W) and how many rows it belongs to."""
        w, heads, dim = self.w, self.dit.num_heads, self.dit.head_dim
        mod = torch.cat([m.expand(n, -1) for m, n in rows])
        shift, scale, gate = mod.chunk(3, -1)
        u = (1 + scale) * F.layer_norm(x, x.shape[-1:], eps=1e-6) + shift
        q, k, v = (
            self.lin(f"{p}.{n}", u).view(-1, heads, dim) for n in ("q_proj", "k_proj", "v_proj")
        )
        q = self.rope(ids, rms(q, 1e-6) * w[f"dit.{p}.norm.query_norm.scale"])
        k = self.rope(ids, rms(k, 1e-6) * w[f"dit.{p}.norm.key_norm.scale"])
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
        g, value = self.lin(f"{p}.mlp_in", u).chunk(2, -1)
        y = self.lin(f"{p}.attn_out", mixed) + self.lin(f"{p}.mlp_out", F.silu(g) * value)
        return x + gate * y

    def forward(self, streams: Mapping[str, tuple[Tensor, Tensor, float]]) -> tuple[Tensor, Tensor]:
        """``streams``: text and four more, in the joint order: tokens, ids, time."""
        hidden, early, joint = [], {}, {}
        for name, (tokens, ids, t) in streams.items():
            vec = self.vec(t, tokens.dtype)
            early[name] = self.lin(f"early_stream_modulations.{name}.lin", F.silu(vec))
            joint[name] = self.lin(f"single_stream_modulations.{name}.lin", F.silu(vec))
            is_text = name == "txt"
            x = self.lin("txt_in" if is_text else f"emb_in.{name}", tokens)
            p = "txt_mode_blocks" if is_text else f"content_mode_blocks.{name}"
            for i in range(self.dit.depth):
                x = self.block(f"{p}.{i}", x, [(early[name], len(x))], ids)
            hidden.append(x)
        ids = torch.cat([s[1] for s in streams.values()])
        rows = [(joint[n], len(h)) for n, h in zip(streams, hidden, strict=True)]
        x = torch.cat(hidden)
        for i in range(self.dit.depth_single_blocks):
            x = self.block(f"single_blocks.{i}", x, rows, ids)
        parts = dict(zip(streams, x.split([len(h) for h in hidden]), strict=True))
        video, _, action, _ = self.config.streams
        return self.head(video, parts, streams), self.head(action, parts, streams)

    def head(self, name: str, parts: Mapping[str, Tensor], streams: Mapping[str, Any]) -> Tensor:
        x, p = parts[name], f"final_layer.{name}"
        vec = self.vec(streams[name][2], x.dtype)
        shift, scale = self.lin(f"{p}.adaLN_modulation.1", F.silu(vec)).chunk(2, -1)
        return self.lin(
            f"{p}.linear", F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        )
