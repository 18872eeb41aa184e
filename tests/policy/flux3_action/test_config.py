"""Package configurations: what is filled in, what is refused, and by which field."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.errors import ConfigError
from ostinato.policy.flux3_action.config import read_package_config

LEAST = {"action_modality": "action_prediction_droid", "action_dim": 8, "chunk_size": 32}


def test_a_package_with_the_least_gets_the_package_defaults() -> None:
    config = read_package_config(LEAST)
    space = config.action_space
    assert config.guidance() == (1.0, 1.0)
    assert (config.num_inference_steps, config.sampler_shift, config.sampler) == (
        4,
        1.0,
        "cosmos_unipc",
    )
    assert space.flip_dims == () and space.scale == 2.0 and space.clip == 6.0
    assert space.parameterization == "absolute" and space.actions is None
    assert config.arrangement.canvas_hw == (544, 736) and config.arrangement.layout == "droid"
    assert config.fps == 15.0 and config.inference_seed == 0 and config.quantization is None
    assert config.streams == (
        "video",
        "video_cond",
        "action_prediction_droid",
        "action_prediction_droid_cond",
    )


def test_droid_sizes() -> None:
    config = read_package_config(LEAST)
    assert config.latent_hw == (17, 20) and config.num_latents == 8
    assert config.dit.hidden_size == 3072 and config.dit.num_heads == 24
    assert config.dit.head_dim == 128 and config.dit.inner_width == 9216
    assert config.dit.depth == 5 and config.dit.depth_single_blocks == 28
    assert config.text_pad_multiple == 80 and config.text_output_layers[-1] == 32
    assert dict(config.dit.streams)["action_prediction_droid_cond"] == 8


def test_layouts_other_than_droid_keep_every_latent_cell_of_the_canvas() -> None:
    raw = LEAST | {"camera_layout": "single", "camera_keys": ["a"], "canvas_hw": [104, 136]}
    assert read_package_config(raw).latent_hw == (4, 5)


@pytest.mark.parametrize("steps", [None, 0])
def test_no_steps_means_four_and_no_shift_means_one(steps: int | None) -> None:
    config = read_package_config(LEAST | {"num_inference_steps": steps, "sampler_shift": None})
    assert (config.num_inference_steps, config.sampler_shift) == (4, 1.0)


def test_the_action_scale_follows_the_video_scale_unless_given() -> None:
    assert read_package_config(LEAST | {"guidance_scale": 4.0}).guidance() == (4.0, 4.0)
    raw = LEAST | {"guidance_scale": 4.0, "guidance_scale_action": 1}
    given = read_package_config(raw)
    assert given.guidance() == (4.0, 1.0) and given.guidance(2.0) == (2.0, 1.0)
    follows = read_package_config(LEAST | {"guidance_scale": 4.0})
    assert follows.guidance(2.0) == (2.0, 2.0) and follows.guidance(None, 3) == (4.0, 3.0)


def test_extra_streams_are_dropped_and_attn_mode_is_ignored() -> None:
    streams = {"video": 96, "video_cond": 96, "image": 128}
    streams |= {"action_prediction_droid": 8, "action_prediction_droid_cond": 8}
    raw = LEAST | {"dit_config": {"streams": streams, "attn_mode": "flex", "depth_late_blocks": 0}}
    assert "image" not in dict(read_package_config(raw).dit.streams)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_dim": None}, "action_dim is missing"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"action_modality": None}, "action_modality is missing"),
        ({"action_modality": "a.b"}, "action_modality is 'a.b'"),
        ({"inference_profile": "history"}, "inference_profile is 'history'"),
        ({"camera_layout": "ring"}, "camera_layout is 'ring'"),
        ({"sampler": "ddim"}, "sampler is 'ddim'"),
        ({"quantization": "int8"}, "quantization is 'int8'"),
        ({"guidance_scale": -1}, "guidance_scale is -1"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan"),
        ({"fps": True}, "fps is True"),
        ({"content_streams": ["video"]}, "content_streams is"),
        ({"conditioning_channels": 48}, "conditioning_channels is 48"),
        ({"unheard_of": 1}, "unknown keys unheard_of"),
        ({"action_normalization": {"q01": [0]}}, "action_normalization is"),
        ({"gripper_flip_dims": [8]}, r"flip_dims holds \[8\]"),
        ({"dit_config": {"qkv_bias": True}}, "qkv_bias is True"),
        ({"dit_config": {"depth_late_blocks": 2}}, "depth_late_blocks is 2"),
        ({"dit_config": {"gate_type": "x"}}, "gate_type is 'x'"),
        ({"dit_config": {"new": 2}}, "dit_config: unknown keys new"),
        ({"dit_config": {"streams": {"video": 96}}}, r"streams\['video_cond'\] is None"),
        ({"dit_config": {"axes_dim": [32, 32, 32]}}, "axes_dim is"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_package_config(LEAST | change)
