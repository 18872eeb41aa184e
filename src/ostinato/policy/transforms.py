"""Between a robot's numbers and a model's: state, actions, prompts and names of observations.

Model space is what the network sees: normalised, scaled, gripper flipped. Robot space is what the
data set recorded (radians, metres). Pure functions on the CPU; images are ``cameras``' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.errors import ConfigError, InputError

Parameterization = Literal["absolute", "joint_delta"]
SMALLEST_SPAN = 1e-6
STATE_NAMES = ("state", "observation.state")
PROMPT_NAMES = ("prompt", "task")
"""Names in an observation, the first that holds something counts."""


@dataclass(frozen=True)
class Quantiles:
    """1st and 99th percentile of each dimension, in robot units."""

    q01: tuple[float, ...]
    q99: tuple[float, ...]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """``q01`` and the span ``q99 - q01`` (1 where it is at most 1e-6), (D,) float32."""
        low = torch.tensor(self.q01, dtype=torch.float32)
        span = torch.tensor(self.q99, dtype=torch.float32) - low
        return low, torch.where(span <= SMALLEST_SPAN, torch.ones_like(span), span)


@dataclass(frozen=True)
class ActionSpace:
    """How states and actions enter and leave the model; ``None`` instead of statistics skips them.

    ``flip_dims``: dimensions that the data set counts the other way round (``1 - x``).
    ``absolute_dims``: under ``joint_delta``, dimensions that are commands and not steps.
    """

    dim: int
    scale: float = 2.0
    parameterization: Parameterization = "absolute"
    flip_dims: tuple[int, ...] = ()
    absolute_dims: tuple[int, ...] = ()
    actions: Quantiles | None = None
    state: Quantiles | None = None
    clip: float = 6.0

    def __post_init__(self) -> None:
        for name, dims in (("flip_dims", self.flip_dims), ("absolute_dims", self.absolute_dims)):
            wrong = [d for d in dims if not -self.dim <= d < self.dim]
            if wrong:
                raise ConfigError(f"{name} holds {wrong}; the action has {self.dim} dimensions")
        for name, stats in (("action", self.actions), ("state", self.state)):
            if stats is not None and {len(stats.q01), len(stats.q99)} != {self.dim}:
                raise ConfigError(
                    f"{name}_normalization has {len(stats.q01)} and {len(stats.q99)} values; "
                    f"expected {self.dim}"
                )

    def flip(self, x: Tensor) -> Tensor:
        """``1 - x`` on ``flip_dims``; its own inverse. ``x``: (..., D)."""
        flipped = x.clone()
        for dim in self.flip_dims:
            flipped[..., dim] = 1.0 - x[..., dim]
        return flipped

    def encode_state(self, state: Tensor) -> Tensor:
        """The state token: flipped, normalised and clipped, scaled. (D,) to (1, D) float32."""
        x = self.flip(state.float())
        if self.state is not None:
            low, span = self.state.tensors()
            x = (2.0 * (x - low) / span - 1.0).clamp(-self.clip, self.clip)
        return (x * self.scale)[None]

    def decode_actions(self, chunk: Tensor, state: Tensor) -> Tensor:
        """Commands in robot units, (K, D), from a chunk in model space (K, D) and the state (D,).

        Unscaled and un-normalised; steps are summed from the flipped state; flipped back.
        """
        x = chunk.float() / self.scale
        if self.actions is not None:
            low, span = self.actions.tensors()
            x = (x + 1.0) * span / 2.0 + low
        if self.parameterization == "joint_delta":
            summed = x.cumsum(0) + self.flip(state.float())
            for dim in self.absolute_dims:
                summed[:, dim] = x[:, dim]
            x = summed
        return self.flip(x)

    def encode_actions(self, commands: Tensor, state: Tensor) -> Tensor:
        """The inverse of ``decode_actions``: a left-over chunk anchored anew on ``state``."""
        x = self.flip(commands.float())
        if self.parameterization == "joint_delta":
            before = torch.cat((self.flip(state.float())[None], x[:-1]))
            steps = x - before
            for dim in self.absolute_dims:
                steps[:, dim] = x[:, dim]
            x = steps
        if self.actions is not None:
            low, span = self.actions.tensors()
            x = 2.0 * (x - low) / span - 1.0
        return x * self.scale


def read_state(observation: Mapping[str, Any], dim: int) -> Tensor:
    """``state`` or ``observation.state`` as exactly ``dim`` finite floats, (dim,) float32.

    Raises ``KeyError`` if there is none and ``InputError`` (a ``ValueError``) if it does not fit.
    """
    for name in STATE_NAMES:
        if observation.get(name) is not None:
            value = observation[name]
            break
    else:
        raise KeyError("the observation has no state (state or observation.state)")
    try:
        state = torch.as_tensor(value, dtype=torch.float32).detach().cpu().flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"state cannot be read as numbers: {error}") from error
    if state.numel() != dim:
        raise InputError(f"state has {state.numel()} values; expected {dim}")
    if not torch.isfinite(state).all():
        raise InputError(f"state holds values that are not finite: {state.tolist()}")
    return state


def read_prompt(observation: Mapping[str, Any]) -> str:
    """``prompt``, else ``task``, else empty; bytes are UTF-8, a list has one entry."""
    prompt = next((p for p in map(observation.get, PROMPT_NAMES) if p is not None), "")
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        if len(prompt) != 1:
            raise InputError(f"prompt is a list of {len(prompt)}; expected one instruction")
        prompt = prompt[0]
    if isinstance(prompt, bytes):
        try:
            prompt = prompt.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"prompt is bytes that are not UTF-8: {error}") from error
    if not isinstance(prompt, str):
        raise InputError(f"prompt is {type(prompt).__name__}; expected text")
    return prompt
