"""One request on the host: an observation to tensors, and what its options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ostinato.errors import InputError
from ostinato.policy.cameras import CAMERA_PREFIX, read_images
from ostinato.policy.chunking import Prefix, make_prefix, no_prefix
from ostinato.policy.contract import OPTION_NAMES, Options
from ostinato.policy.flux3_action.config import ActionConfig
from ostinato.policy.flux3_action.model import draw_noise
from ostinato.policy.transforms import PROMPT_NAMES, STATE_NAMES, read_prompt, read_state

_FIELDS = frozenset(("images", *STATE_NAMES, *PROMPT_NAMES))


class Prepared(NamedTuple):
    """float32: ``canvas`` (1, 3, H, W) on the device; on the CPU ``state`` (D,) in robot units and
    ``token`` (1, D) in model space.
    """

    canvas: Tensor
    state: Tensor
    token: Tensor
    prompt: str


class Recipe(NamedTuple):
    """How a chunk is made, every default filled in."""

    num_steps: int
    shift: float
    guidance: tuple[float, float]
    horizon: int

    @property
    def is_guided(self) -> bool:
        """True when the empty instruction is needed as well."""
        return self.guidance != (1.0, 1.0)


def prepare(
    config: ActionConfig, observation: Mapping[str, Any], device: torch.device | None = None
) -> Prepared:
    """Raises ``KeyError`` for cameras or a state that are missing, ``InputError`` otherwise."""
    if not isinstance(observation, Mapping):
        raise InputError(f"observation is {type(observation).__name__}; expected a map")
    state = read_state(observation, config.action_dim)
    canvas = config.arrangement.canvas(read_images(observation), device)
    return Prepared(
        canvas, state, config.action_space.encode_state(state), read_prompt(observation)
    )


def unread_fields(observation: Mapping[str, Any]) -> tuple[str, ...]:
    """Names that neither an observation nor its options have, sorted: a misspelt one is likely."""
    known = _FIELDS | OPTION_NAMES
    names = (str(name) for name in observation)
    return tuple(sorted(n for n in names if n not in known and not n.startswith(CAMERA_PREFIX)))


def recipe(config: ActionConfig, options: Options) -> Recipe:
    """The request's steps, shift, guidance and horizon; ``InputError`` beyond the chunk.

    Scales fall back as ``ActionConfig.guidance`` says.
    """
    horizon = options.action_horizon or config.chunk_size
    if horizon > config.chunk_size:
        raise InputError(f"action_horizon is {horizon}; the chunk has {config.chunk_size} actions")
    return Recipe(
        int(options.num_inference_steps or config.num_inference_steps),
        float(config.sampler_shift if options.sampler_shift is None else options.sampler_shift),
        config.guidance(options.guidance_scale, options.guidance_scale_action),
        int(horizon),
    )


def noise_for(config: ActionConfig, options: Options) -> tuple[Tensor, Tensor]:
    """Noise (V, C) and (K, D) float32: given, else from the seed."""
    seed = config.inference_seed if options.seed is None else options.seed
    video, actions = draw_noise(config, int(seed))
    given = options.noise or {}
    if not isinstance(given, Mapping) or set(given) - {"video", "action"}:
        raise InputError("noise is no map with video or action; expected arrays under these names")
    return _given(given, "video", video), _given(given, "action", actions)


def prefix_for(config: ActionConfig, options: Options) -> Prefix:
    """What the previous chunk asks of this one; nothing, unless a left-over was sent."""
    dim = config.action_dim
    if options.prev_chunk_left_over is None:
        return no_prefix(config.chunk_size, dim)
    left = _numbers(options.prev_chunk_left_over, "prev_chunk_left_over")
    if left.numel() == 0:
        return no_prefix(config.chunk_size, dim)
    if left.dim() != 2 or left.shape[1] != dim:
        raise InputError(f"prev_chunk_left_over is {tuple(left.shape)}; expected (n, {dim})")
    horizon = options.execution_horizon
    return make_prefix(
        left,
        config.chunk_size,
        delay=options.inference_delay,
        horizon=config.chunk_size if horizon is None else horizon,
        schedule=options.prefix_attention_schedule,
        max_guidance=options.max_guidance_weight,
    )


def _given(noise: Mapping[str, Any], name: str, drawn: Tensor) -> Tensor:
    if noise.get(name) is None:
        return drawn
    values = _numbers(noise[name], f"noise[{name!r}]")
    if values.shape != drawn.shape:
        raise InputError(f"noise[{name!r}] is {tuple(values.shape)}; expected {tuple(drawn.shape)}")
    if not torch.isfinite(values).all():
        raise InputError(f"noise[{name!r}] holds values that are not finite")
    return values


def _numbers(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=torch.float32).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as numbers: {error}") from error
