"""What a FLUX 3 Action package says of itself: read strictly, refused by field.

``ActionConfig`` is the package's own file (``config.native.json``, else ``config.json``);
``DitConfig`` its ``dit_config``. No file is opened here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ostinato.errors import ConfigError
from ostinato.policy.cameras import LAYOUTS, Arrangement, Layout
from ostinato.policy.fields import Fields
from ostinato.policy.transforms import ActionSpace, Parameterization, Quantiles

CELL = 32
"""Canvas pixels of one latent cell, on each axis."""
FRAMES_PER_LATENT = 4
"""Actions, and frames of the video, that one predicted latent frame stands for."""

Sampler = Literal["cosmos_unipc", "euler"]
Quantization = Literal["fp8r"]

_IGNORED = {"attn_mode"}
_PACKAGE_KEYS = {
    "action_modality",
    "action_dim",
    "chunk_size",
    "camera_layout",
    "camera_keys",
    "camera_hw",
    "canvas_hw",
    "fps",
    "action_scale",
    "gripper_flip_dims",
    "action_parameterization",
    "absolute_action_dims",
    "action_normalization",
    "state_normalization",
    "normalization_clip",
    "inference_profile",
    "sampler",
    "num_inference_steps",
    "guidance_scale",
    "guidance_scale_action",
    "sampler_shift",
    "inference_seed",
    "quantization",
    "video_vae_id",
    "text_encoder_id",
    "conditioning_channels",
    "content_streams",
    "dit_config",
}


@dataclass(frozen=True)
class DitConfig:
    """Sizes of the transformer; the defaults are the published ones. ``streams``: channels."""

    streams: tuple[tuple[str, int], ...]
    hidden_size: int = 3072
    num_heads: int = 24
    depth: int = 5
    depth_single_blocks: int = 28
    mlp_ratio: float = 3.0
    axes_dim: tuple[int, int, int, int] = (32, 32, 32, 32)
    theta: float = 10000.0
    context_in_dim: int = 20480
    vec_in_dim: int = 768
    dropped: tuple[str, ...] = ()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def inner_width(self) -> int:
        """Width of the gated MLP: of its gate, and of its value."""
        return int(self.hidden_size * self.mlp_ratio)

    def channels(self, stream: str) -> int:
        return dict(self.streams)[stream]


@dataclass(frozen=True)
class ActionConfig:
    """One package, every default filled in."""

    action_modality: str
    action_dim: int
    chunk_size: int
    arrangement: Arrangement
    fps: float
    action_space: ActionSpace
    sampler: Sampler
    num_inference_steps: int
    guidance_scale: float
    guidance_scale_action: float | None
    sampler_shift: float
    inference_seed: int
    quantization: Quantization | None
    video_vae_id: str
    text_encoder_id: str
    dit: DitConfig
    text_pad_multiple: int = 80
    text_max_length: int = 8192
    text_output_layers: tuple[int, ...] = (4, 8, 12, 16, 20, 24, 28, 32)

    @property
    def num_latents(self) -> int:
        """Predicted latent frames: ``floor(chunk / 4)``."""
        return self.chunk_size // FRAMES_PER_LATENT

    @property
    def latent_hw(self) -> tuple[int, int]:
        """Rows and columns of latent cells that hold content: ``ceil(content / 32)``."""
        height, width = self.arrangement.content_hw
        return -(-height // CELL), -(-width // CELL)

    @property
    def streams(self) -> tuple[str, str, str, str]:
        """Noised video, its condition, noised actions, their condition: the joint order."""
        return "video", "video_cond", self.action_modality, f"{self.action_modality}_cond"

    def guidance(
        self, video: float | None = None, action: float | None = None
    ) -> tuple[float, float]:
        """Scales of the video and of the action stream; a request's before the package's.

        Where neither names the action's, it follows the video's.
        """
        scale = self.guidance_scale if video is None else float(video)
        own = self.guidance_scale_action if action is None else float(action)
        return scale, scale if own is None else own


def read_package_config(raw: Mapping[str, Any]) -> ActionConfig:
    """The package's configuration with the defaults of a package filled in.

    Raises ``ConfigError`` naming the field for what is missing, unknown or cannot be served.
    """
    fields = Fields(raw, "package config")
    fields.refuse_unknown(_PACKAGE_KEYS | {"text_pad_multiple", "text_output_layers"})
    action_dim = fields.integer("action_dim", at_least=1)
    modality = fields.text("action_modality")
    if "." in modality or not modality:
        raise ConfigError(f"package config: action_modality is {modality!r}; expected a plain name")
    profile = fields.get("inference_profile", "default")
    if profile != "default":
        raise ConfigError(
            f"package config: inference_profile is {profile!r}; only 'default' can be served"
        )
    _check_content_streams(fields)
    dit = read_dit_config(fields.get("dit_config", {}) or {}, modality, action_dim)
    channels = fields.get("conditioning_channels")
    if channels is not None and channels != dit.channels("video_cond"):
        raise ConfigError(
            f"package config: conditioning_channels is {channels!r}; dit_config has "
            f"{dit.channels('video_cond')}"
        )
    return ActionConfig(
        action_modality=modality,
        action_dim=action_dim,
        chunk_size=fields.integer("chunk_size", at_least=1),
        arrangement=_read_arrangement(fields),
        fps=fields.number("fps", 15.0, above=0.0),
        action_space=_read_action_space(fields, action_dim),
        sampler=fields.choice("sampler", get_args(Sampler), "cosmos_unipc"),
        num_inference_steps=fields.integer("num_inference_steps", 0, at_least=0) or 4,
        guidance_scale=fields.number("guidance_scale", 1.0, at_least=0.0),
        guidance_scale_action=_optional_scale(fields),
        sampler_shift=fields.number("sampler_shift", 1.0, above=0.0),
        inference_seed=fields.integer("inference_seed", 0, at_least=0),
        quantization=fields.choice("quantization", (None, "fp8r"), None),
        video_vae_id=fields.text("video_vae_id", "vae"),
        text_encoder_id=fields.text("text_encoder_id", "text_encoder"),
        dit=dit,
        text_pad_multiple=fields.integer("text_pad_multiple", 80, at_least=1),
        text_output_layers=fields.integers(
            "text_output_layers", ActionConfig.text_output_layers, at_least=1
        ),
    )


def read_dit_config(raw: Mapping[str, Any], modality: str, action_dim: int) -> DitConfig:
    """``dit_config``; streams that a policy does not use are dropped, unknown keys refused."""
    fields = Fields(raw, "dit_config")
    defaults = DitConfig(())
    own = {
        "hidden_size",
        "num_heads",
        "depth",
        "depth_single_blocks",
        "mlp_ratio",
        "axes_dim",
        "theta",
        "context_in_dim",
        "vec_in_dim",
        "streams",
    }
    fields.refuse_unknown(own | _IGNORED | {"depth_late_blocks", "qkv_bias", "gate_type"})
    for name in ("depth_late_blocks", "qkv_bias", "gate_type"):
        if fields.get(name):
            raise ConfigError(f"dit_config: {name} is {raw[name]!r}; only blocks without are known")
    needed = {"video": 96, "video_cond": 96, modality: action_dim, f"{modality}_cond": action_dim}
    given = fields.get("streams", needed)
    if not isinstance(given, Mapping):
        raise ConfigError(f"dit_config: streams is {given!r}; expected name to channels")
    for name in needed:
        if not isinstance(given.get(name), int) or given[name] < 1:
            raise ConfigError(f"dit_config: streams[{name!r}] is {given.get(name)!r}")
        if name.startswith(modality) and given[name] != action_dim:
            raise ConfigError(
                f"dit_config: streams[{name!r}] is {given[name]}; action_dim is {action_dim}"
            )
    axes = fields.integers("axes_dim", defaults.axes_dim, at_least=2)
    config = DitConfig(
        streams=tuple((name, given[name]) for name in needed),
        dropped=tuple(sorted(set(given) - set(needed))),
        hidden_size=fields.integer("hidden_size", defaults.hidden_size, at_least=1),
        num_heads=fields.integer("num_heads", defaults.num_heads, at_least=1),
        depth=fields.integer("depth", defaults.depth, at_least=0),
        depth_single_blocks=fields.integer("depth_single_blocks", 28, at_least=0),
        mlp_ratio=fields.number("mlp_ratio", defaults.mlp_ratio, above=0.0),
        axes_dim=axes,  # type: ignore[arg-type]
        theta=fields.number("theta", defaults.theta, above=0.0),
        context_in_dim=fields.integer("context_in_dim", defaults.context_in_dim, at_least=1),
        vec_in_dim=fields.integer("vec_in_dim", defaults.vec_in_dim, at_least=1),
    )
    if len(axes) != 4 or sum(axes) * config.num_heads != config.hidden_size:
        raise ConfigError(
            f"dit_config: axes_dim is {axes}; expected four axes that sum to hidden_size / "
            f"num_heads = {config.hidden_size} / {config.num_heads}"
        )
    return config


def _optional_scale(fields: Fields) -> float | None:
    if fields.get("guidance_scale_action") is None:
        return None
    return fields.number("guidance_scale_action", at_least=0.0)


def _check_content_streams(fields: Fields) -> None:
    streams = fields.get("content_streams")
    if streams is not None and sorted(streams) != ["video", "video_cond"]:
        raise ConfigError(
            f"package config: content_streams is {streams!r}; expected video and video_cond"
        )


def _read_arrangement(fields: Fields) -> Arrangement:
    layout: Layout = fields.choice("camera_layout", LAYOUTS, "droid")
    cameras = tuple(fields.get("camera_keys") or ())
    if not all(isinstance(name, str) for name in cameras):
        raise ConfigError(f"package config: camera_keys is {cameras!r}; expected names")
    camera_hw = fields.integers("camera_hw", (360, 640), at_least=1)
    canvas_hw = fields.integers("canvas_hw", (544, 736), at_least=1)
    if len(canvas_hw) != 2 or len(camera_hw) != 2:
        raise ConfigError(
            f"package config: canvas_hw is {canvas_hw}, camera_hw {camera_hw}; expected two numbers"
        )
    return Arrangement(layout, cameras, (canvas_hw[0], canvas_hw[1]), (camera_hw[0], camera_hw[1]))


def _read_action_space(fields: Fields, action_dim: int) -> ActionSpace:
    return ActionSpace(
        dim=action_dim,
        scale=fields.number("action_scale", 2.0, above=0.0),
        parameterization=fields.choice(
            "action_parameterization", get_args(Parameterization), "absolute"
        ),
        flip_dims=fields.integers("gripper_flip_dims", (), at_least=-action_dim),
        absolute_dims=fields.integers("absolute_action_dims", (), at_least=-action_dim),
        actions=_read_quantiles(fields, "action_normalization"),
        state=_read_quantiles(fields, "state_normalization"),
        clip=fields.number("normalization_clip", 6.0, above=0.0),
    )


def _read_quantiles(fields: Fields, name: str) -> Quantiles | None:
    raw = fields.get(name)
    if raw is None:
        return None
    if not isinstance(raw, Mapping) or set(raw) != {"q01", "q99"}:
        raise ConfigError(f"package config: {name} is {raw!r}; expected q01 and q99")
    return Quantiles(tuple(map(float, raw["q01"])), tuple(map(float, raw["q99"])))
