"""Published names, spelled out: what a fused parameter stacks, and in which order."""

from __future__ import annotations

import pytest

from ostinato.policy.flux3_action.names import (
    dit_parts,
    is_wanted_by_dit,
    is_wanted_by_text,
    is_wanted_by_vae,
    text_parts,
)
from tests.policy.flux3_action import tiny


def test_a_block_stacks_q_k_v_and_both_halves_of_the_mlp() -> None:
    parts = dit_parts(tiny.loaded().model.dit)
    stack = [tuple(part) for part in parts["single_blocks.1.qkv_mlp.weight"]]
    assert stack == [
        ("dit.single_blocks.1.q_proj.weight", (64, 64)),
        ("dit.single_blocks.1.k_proj.weight", (64, 64)),
        ("dit.single_blocks.1.v_proj.weight", (64, 64)),
        ("dit.single_blocks.1.mlp_in.weight", (384, 64)),
    ]


def test_a_text_layer_stacks_q_k_v_and_gate_before_up() -> None:
    parts = text_parts(tiny.loaded().text, "model.")
    p = "model.layers.2."
    names = [part.name for part in parts["decoder.layers.2.self_attn.qkv_proj.weight"]]
    assert names == [f"{p}self_attn.{n}_proj.weight" for n in "qkv"]
    names = [part.name for part in parts["decoder.layers.2.mlp.gate_up_proj.weight"]]
    assert names == [f"{p}mlp.gate_proj.weight", f"{p}mlp.up_proj.weight"]


@pytest.mark.parametrize(
    ("name", "is_wanted"),
    [
        ("dit.vector_in.in_layer.weight", False),
        ("dit.final_layer.video_cond.linear.weight", False),
        ("dit.final_layer.action_prediction_droid_cond.adaLN_modulation.1.weight", False),
        ("dit.final_layer.video.linear.weight", True),
        ("dit.emb_in.image.weight", True),  # not listed: unknown, and so refused later
        ("other.weight", True),
    ],
)
def test_what_the_transformer_leaves_out(name: str, is_wanted: bool) -> None:
    assert is_wanted_by_dit(tiny.loaded().config)(name) == is_wanted


def test_what_the_other_parts_leave_out() -> None:
    assert not is_wanted_by_vae("model.decoder.proj_in.weight")
    assert not is_wanted_by_vae("model.encoder.features.6.attn.rope.inv_freq")
    assert not is_wanted_by_vae("model.z_normalizer.initialized")
    assert is_wanted_by_vae("model.z_normalizer.running_var") and is_wanted_by_vae("x")
    is_wanted = is_wanted_by_text("model.language_model.", 4)
    assert is_wanted("model.language_model.layers.3.mlp.up_proj.weight")
    assert not is_wanted("model.language_model.layers.4.mlp.up_proj.weight")
    assert not is_wanted("model.language_model.norm.weight") and not is_wanted("lm_head.weight")
    assert not is_wanted("model.visual.patch_embed.proj.weight")
