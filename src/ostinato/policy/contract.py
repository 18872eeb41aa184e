"""What every policy is to its callers, and what a request may ask for.

An observation is a map: ``images`` (name to image) and ``observation.images.<name>``, ``state``
(numbers), ``prompt`` or ``task``. Images and states are ``cameras``' and ``transforms``' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ostinato.errors import InputError
from ostinato.policy.chunking import MAX_GUIDANCE_WEIGHT


class Policy(Protocol):
    """One robot's brain. Wrappers and remote clients are policies too."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Plain values: cameras, sizes, defaults, what can be asked for, how it is recorded."""

    def infer(self, observation: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """At least ``actions``: (horizon, D) float32, in robot units, the caller's own.

        ``options``: fields of ``Options``; those that the observation carries under the same names
        count where none is given. Raises ``KeyError`` for what is missing and ``InputError`` (a
        ``ValueError``) for what cannot be.
        """

    def reset(self) -> None:
        """A new episode begins."""


@dataclass(frozen=True)
class Options:
    """One request's wishes; ``None`` is the package's default.

    ``noise``: ``{"video": (V, C), "action": (K, D)}``, either of them, instead of the seed's.
    ``prev_chunk_left_over``: (n, D) of the last ``model_actions`` that are not executed yet, in
    model space, the first being the next to be executed. ``inference_delay``: steps that will be
    executed before this answer is there (0 for a first chunk). ``enable_prefix_cache``: use what
    is kept of the instruction. ``enable_cuda_graph``: replay recordings.
    """

    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    guidance_scale_action: float | None = None
    sampler_shift: float | None = None
    seed: int | None = None
    noise: Mapping[str, Any] | None = None
    action_horizon: int | None = None
    enable_cuda_graph: bool | None = None
    enable_prefix_cache: bool | None = None
    prev_chunk_left_over: Any = None
    inference_delay: int = 0
    execution_horizon: int | None = None
    prefix_attention_schedule: str = "LINEAR"
    max_guidance_weight: float = MAX_GUIDANCE_WEIGHT

    def __post_init__(self) -> None:
        for name, at_least in (
            ("num_inference_steps", 1),
            ("seed", 0),
            ("action_horizon", 1),
            ("inference_delay", 0),
            ("execution_horizon", 0),
        ):
            value = getattr(self, name)
            if value is not None and (not _is_integer(value) or value < at_least):
                raise InputError(f"{name} is {value!r}; expected an integer of at least {at_least}")
        for name in ("guidance_scale", "guidance_scale_action", "sampler_shift"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or not 0 <= value < float("inf")):
                raise InputError(f"{name} is {value!r}; expected a finite number of at least 0")
        if self.sampler_shift == 0:
            raise InputError("sampler_shift is 0; expected a number above 0")
        for name in ("enable_cuda_graph", "enable_prefix_cache"):
            value = getattr(self, name)
            if value not in (None, True, False, "auto"):
                raise InputError(f"{name} is {value!r}; expected true, false or 'auto'")


OPTION_NAMES = frozenset(field.name for field in fields(Options))


def read_options(observation: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
    """Options of an observation's own keys, those ``given`` before them.

    Raises ``InputError`` for names that do not exist.
    """
    unknown = sorted(set(given) - OPTION_NAMES)
    if unknown:
        raise InputError(
            f"unknown options {', '.join(unknown)}; known: {', '.join(sorted(OPTION_NAMES))}"
        )
    own = {name: observation[name] for name in OPTION_NAMES & set(observation)}
    merged = own | {name: value for name, value in given.items() if value is not None}
    return replace(Options(), **{k: v for k, v in merged.items() if v is not None})


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool | str)
