"""What a policy says of itself: to clients, about its times, and why it records nothing."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import nn

from ostinato.policy.flux3_action.config import ActionConfig


def about(config: ActionConfig, origin: str) -> dict[str, Any]:
    """Plain values of a package: inputs, output, defaults, capabilities."""
    arrangement = config.arrangement
    return {
        "object": "action.metadata",
        "model": origin,
        "input": {
            "camera_layout": arrangement.layout,
            "camera_keys": list(arrangement.cameras),
            "camera_hw": list(arrangement.camera_hw),
            "canvas_hw": list(arrangement.canvas_hw),
            "state_dim": config.action_dim,
        },
        "output": {
            "action_horizon": config.chunk_size,
            "action_dim": config.action_dim,
            "fps": config.fps,
            "action_parameterization": config.action_space.parameterization,
        },
        "defaults": {
            "num_inference_steps": config.num_inference_steps,
            "guidance_scale": config.guidance_scale,
            "guidance_scale_action": config.guidance()[1],
            "sampler": config.sampler,
            "sampler_shift": config.sampler_shift,
            "seed": config.inference_seed,
        },
        "capabilities": {"prefix_cache": True, "real_time_chunking": True, "noise": True},
    }


def why_direct(model: nn.Module, *, is_on: bool) -> str:
    """Why nothing may be recorded; empty where it may.

    Recordings are of one GPU: weights on several, or one model run by several processes, which
    wait for each other inside a call, are served directly.
    """
    if not is_on:
        return "off"
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        return f"several devices hold the weights: {', '.join(devices)}"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        num_processes = torch.distributed.get_world_size()
        if num_processes > 1:
            return f"{num_processes} processes run the model together"
    return ""


class Clock:
    """Milliseconds between laps. Device work counts where the host waits for it."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = perf_counter()
        self._laps[name] = (now - self._last) * 1e3
        self._last = now

    def timings(self) -> dict[str, float]:
        return self._laps | {"total_ms": (self._last - self._start) * 1e3}
