"""What a served policy declares and does: plain values and numpy arrays, no tensor, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ostinato.serve.service import Service


@dataclass(frozen=True, slots=True)
class ObservationSpec:
    """What an observation must hold.

    ``cameras``: names of the images, each (H, W, 3) of ``camera_hw``; bytes 0..255, or floats in
    [0, 1]. ``composite_hw``: the size of one image that may come instead of all, where the policy
    knows one. ``state_dim``: numbers of the state. ``aliases``: other names of cameras.
    ``options``: names that a request may set beside the observation.
    """

    cameras: tuple[str, ...]
    camera_hw: tuple[int, int]
    state_dim: int
    composite_hw: tuple[int, int] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()


class PolicyService(Service, Protocol):
    """A service whose requests hold ``observation`` (``images``, ``state``, ``prompt``) and
    ``options``, and whose replies hold ``actions`` (horizon, D) and, where the policy has them,
    ``actions_model`` of the same shape in model space.

    ``prepare`` checks the options of a request; ``facts`` of a reply are plain values.
    """

    @property
    def spec(self) -> ObservationSpec:
        """What it wants to see."""

    def metadata(self) -> Mapping[str, Any]:
        """Plain values for clients: inputs, output, defaults, capabilities, runtime as it is now.

        Never waits for the device.
        """

    def keep_warm(self) -> None:
        """One call that nobody asked for, on the device thread."""

    def reset(self, session_id: str | None) -> None:
        """An episode begins; called from any thread and never waits for the device."""
