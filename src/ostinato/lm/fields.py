"""Reads the decoder's part of a published ``config.json``; what is not served is refused by name.

Newer files nest it in ``text_config``, older ones (Qwen2.5-VL) have it at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.errors import WeightsError
from ostinato.lm.contract import LmConfig

_SECTIONS = {"qwen2_5_vl": (16, 24, 24), "qwen3_vl": (24, 20, 20)}
_THETA = {"qwen2_5_vl": 1e6, "qwen3_vl": 5e5}
_REFUSED = (
    ("num_experts", "mixtures of experts are not served"),
    ("num_local_experts", "mixtures of experts are not served"),
    ("moe_intermediate_size", "mixtures of experts are not served"),
    ("use_sliding_window", "sliding windows are not served"),
    ("quantization_config", "quantised decoders are not served"),
)


def read_lm_config(config: Mapping[str, Any]) -> LmConfig:
    """``WeightsError`` naming field and value for whatever cannot be served."""
    kind = config.get("model_type")
    if kind not in _SECTIONS:
        raise WeightsError(f"no decoder for model_type {kind!r}; known are {', '.join(_SECTIONS)}")
    text = config.get("text_config") or config
    for name, why in _REFUSED:
        for values in (text, config):
            if values.get(name):
                raise WeightsError(f"{name} is {values[name]!r}: {why}")
    _must_be(text, "hidden_act", "silu")
    is_qwen3 = kind == "qwen3_vl"
    if is_qwen3:
        _must_be(text, "attention_bias", False)
    width, heads = _count(text, "hidden_size"), _count(text, "num_attention_heads")
    head_dim = _count(text, "head_dim", 128 if is_qwen3 else width // heads)
    sections, theta = _rope(text, str(kind), head_dim)
    tied = config.get("tie_word_embeddings") or text.get("tie_word_embeddings")
    result = LmConfig(
        model_type=str(kind),
        width=width,
        num_layers=_count(text, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_count(text, "num_key_value_heads", heads),
        head_dim=head_dim,
        inner_width=_count(text, "intermediate_size"),
        num_tokens=_count(text, "vocab_size"),
        theta=theta,
        eps=float(text.get("rms_norm_eps", 1e-6)),
        max_positions=_count(text, "max_position_embeddings", 32768),
        has_qkv_bias=not is_qwen3,
        has_head_norm=is_qwen3,
        is_tied=bool(tied),
        rope_sections=sections,
        is_interleaved=is_qwen3,
    )
    if result.num_heads % result.num_kv_heads:
        raise WeightsError(
            f"num_key_value_heads is {result.num_kv_heads}; expected a divisor of "
            f"num_attention_heads, {result.num_heads}"
        )
    return result


def _rope(text: Mapping[str, Any], kind: str, head_dim: int) -> tuple[tuple[int, int, int], float]:
    """M-RoPE's sections and base; any scaling of the angles is refused."""
    name = "rope_parameters" if text.get("rope_parameters") else "rope_scaling"
    rope = text.get(name) or {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", "mrope"):
        raise WeightsError(f"{name}.rope_type is {scaling!r}; expected 'default' or 'mrope'")
    is_interleaved = bool(rope.get("mrope_interleaved", kind == "qwen3_vl"))
    if is_interleaved != (kind == "qwen3_vl"):
        raise WeightsError(f"{name}.mrope_interleaved is {is_interleaved} in a {kind}")
    sections = tuple(rope.get("mrope_section", _SECTIONS[kind]))
    if len(sections) != 3 or sum(sections) != head_dim // 2:
        raise WeightsError(
            f"{name}.mrope_section is {list(sections)}; expected three numbers with the sum "
            f"{head_dim // 2}, half of head_dim"
        )
    return sections, float(rope.get("rope_theta", text.get("rope_theta", _THETA[kind])))


def _count(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise WeightsError(f"{name} is {value!r}; expected a whole number of at least 1")
    return value


def _must_be(values: Mapping[str, Any], name: str, expected: object) -> None:
    value = values.get(name, expected)
    if value != expected:
        raise WeightsError(f"{name} is {value!r}; expected {expected!r}")
