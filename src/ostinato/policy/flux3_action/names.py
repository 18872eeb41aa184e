"""Published names: which stored tensors make each parameter, and which are known and left out."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ostinato.policy.flux3_action.config import ActionConfig
from ostinato.policy.flux3_action.text import TextEncoder
from ostinato.policy.flux3_action.transformer import Transformer
from ostinato.policy.flux3_action.vae import VaeEncoder
from ostinato.weights.stacked import Part, Parts

DIT, VAE = "dit.", "model."
TEXT_PREFIXES = ("model.language_model.", "model.")
"""Of the whole vision-language checkpoint, and of a text model alone."""

_STREAM_GROUPS = (
    "emb_in",
    "early_stream_modulations",
    "single_stream_modulations",
    "content_mode_blocks",
    "final_layer",
)


def dit_parts(dit: Transformer) -> Parts:
    """The projection of a block is stored as q, k, v and both halves of the MLP."""
    width, inner = dit.config.hidden_size, dit.config.inner_width
    stack = {"q_proj": width, "k_proj": width, "v_proj": width, "mlp_in": 2 * inner}
    return {
        name: _split(DIT + name, tuple(parameter.shape), "qkv_mlp", stack)
        for name, parameter in dit.named_parameters()
    }


def vae_parts(vae: VaeEncoder) -> Parts:
    return {
        name: (Part(VAE + name, tuple(parameter.shape)),)
        for name, parameter in vae.named_parameters()
    }


def text_parts(encoder: TextEncoder, prefix: str) -> Parts:
    """Queries, keys and values, and gate and up, are stored apart."""
    config = encoder.config
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    heads["v_proj"] = config.num_kv_heads
    rows = {name: count * config.head_dim for name, count in heads.items()}
    halves = dict.fromkeys(("gate_proj", "up_proj"), config.inner_width)
    parts: dict[str, tuple[Part, ...]] = {}
    for name, parameter in encoder.named_parameters():
        stored = prefix + name.removeprefix("decoder.")
        is_mlp = "gate_up_proj" in name
        stack = ("gate_up_proj", halves) if is_mlp else ("qkv_proj", rows)
        parts[name] = _split(stored, tuple(parameter.shape), *stack)
    return parts


def is_wanted_by_dit(config: ActionConfig) -> Callable[[str], bool]:
    """False for what a checkpoint holds and serving does not need.

    These are the vector embedder (its term is zero), heads of conditions, and streams that the
    configuration lists and a policy drops.
    """
    _, video_cond, _, action_cond = config.streams

    def is_wanted(name: str) -> bool:
        if not name.startswith(DIT):
            return True  # unknown: refused by the strict check
        group, _, rest = name.removeprefix(DIT).partition(".")
        stream = rest.partition(".")[0]
        if group == "vector_in" or (stream in config.dit.dropped and group in _STREAM_GROUPS):
            return False
        return not (group == "final_layer" and stream in (video_cond, action_cond))

    return is_wanted


def is_wanted_by_vae(name: str) -> bool:
    """False for the decoder, stored rotary frequencies (their formula is known) and a flag."""
    is_known = name.startswith("model.decoder.") or name.endswith(".rope.inv_freq")
    return not is_known and name != "model.z_normalizer.initialized"


def is_wanted_by_text(prefix: str, num_layers: int) -> Callable[[str], bool]:
    """True for embeddings and the first ``num_layers`` layers; nothing else is read."""

    def is_wanted(name: str) -> bool:
        if not name.startswith(prefix):
            return False
        group, _, rest = name.removeprefix(prefix).partition(".")
        if group == "layers":
            return int(rest.partition(".")[0]) < num_layers
        return group == "embed_tokens"

    return is_wanted


def quantised_names(module: nn.Module, parts: Parts) -> frozenset[str]:
    """Stored names of every E4M3 matrix."""
    scaled = {
        n.removesuffix("_scale") for n, _ in module.named_parameters() if n.endswith("_scale")
    }
    return frozenset(part.name for name in scaled for part in parts[name])


def _split(
    name: str, shape: tuple[int, ...], stacked: str, rows: dict[str, int]
) -> tuple[Part, ...]:
    before, found, after = name.partition(f".{stacked}.")
    if not found:
        return (Part(name, shape),)
    return tuple(Part(f"{before}.{n}.{after}", (count, *shape[1:])) for n, count in rows.items())
