"""One loaded policy in the ways it can be run: unfused, direct, compiled, recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ostinato.bench.unfused import unfused
from ostinato.policy.flux3_action.load import Loaded
from ostinato.policy.flux3_action.policy import ActionPolicy, Stages
from ostinato.recording.config import GraphConfig

SHORT = "pick up the red cup"
LONG = "take the red cup from the shelf and put it on the table, then close the upper drawer"
CAPTION_TOKENS = 65536


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Peer:
    """A way to run the policy. ``inside`` is entered around each call, ``begin`` called
    before a request."""

    name: str
    policy: ActionPolicy
    options: Mapping[str, Any]
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    begin: Callable[[], None] = _nothing

    def infer(self, observation: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """One request; see ``ActionPolicy.infer``."""
        with self.inside():
            self.begin()
            return self.policy.infer(observation, **options, **self.options)

    def stages(self, observation: Mapping[str, Any]) -> Stages:
        """The device's work of a request apart; see ``ActionPolicy.stages``."""
        with self.inside():
            self.begin()
            made = self.policy.stages(observation, **self.options)

        def observe() -> Any:
            with self.inside():
                self.begin()
                return made.observe()

        def denoise() -> Any:
            with self.inside():
                return made.denoise()

        return Stages(observe, denoise)


class Peers:
    """The ways to run one loaded model. Leaving the context frees the recordings."""

    def __init__(self, loaded: Loaded, *, offloads_text: bool = False) -> None:
        self._loaded = loaded
        self.policy = make_policy(loaded, is_recorded=True, offloads_text=offloads_text)
        self.peaks: list[int] = []
        """Highest reserved bytes between two looks at the memory."""
        direct = {"enable_cuda_graph": False}
        self.unfused = Peer("unfused", self.policy, direct, unfused)
        self.direct = Peer("direct", self.policy, direct)
        self.recorded = Peer("recorded", self.policy, {})
        self.all = [self.unfused, self.direct, self.recorded]
        base = self.another({"prompt": SHORT}, seed=0)
        self.observations = {"80 tokens": base, "160 tokens": base | {"prompt": LONG}}
        self.short = base

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self.policy.close()

    def another(self, observation: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
        """The same instruction with other random frames and another state."""
        arrangement = self._loaded.config.arrangement
        rng = np.random.default_rng(seed)
        frames = {
            name: rng.integers(0, 256, (*arrangement.camera_hw, 3), dtype=np.uint8)
            for name in arrangement.cameras
        }
        state = rng.uniform(-1, 1, self._loaded.config.action_dim).astype(np.float32)
        return {"images": frames, "state": state, "prompt": observation["prompt"]}

    def add_compiled(self, mode: str, backend: str = "inductor") -> Peer:
        """``torch.compile`` over the unfused model: the observation whole, and one solver step.

        The solver runs between the calls, as in public code. Compiled at the first call.
        """
        model = copy.copy(self._loaded.model)  # shares modules and weights
        options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "backend": backend}
        if backend == "inductor":
            options["mode"] = mode
        observe, velocities = self._loaded.model.observe, self._loaded.model.velocities
        object.__setattr__(model, "observe", torch.compile(observe, **options))
        object.__setattr__(model, "velocities", torch.compile(velocities, **options))
        policy = make_policy(replace(self._loaded, model=model), is_recorded=False)
        is_graphed = backend == "inductor" and mode != "default" and policy.device.type == "cuda"
        begin = torch.compiler.cudagraph_mark_step_begin if is_graphed else _nothing
        peer = Peer("compiled", policy, {}, unfused, begin)
        self.all.insert(2, peer)
        return peer


def make_policy(loaded: Loaded, *, is_recorded: bool, offloads_text: bool = False) -> ActionPolicy:
    """Not warmed up."""
    return ActionPolicy(
        loaded,
        enable_cuda_graph=is_recorded,
        graph=GraphConfig(),
        caption_cache_max_tokens=CAPTION_TOKENS,
        offload_text_encoder=offloads_text,
    )
