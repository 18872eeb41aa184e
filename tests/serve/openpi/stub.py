"""A policy without a model: its actions are plain functions of what it saw. It can be made to wait,
to fail, or to answer with numbers that no robot may get.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.openpi.contract import ObservationSpec
from ostinato.serve.service import Reply, Request

HW = (12, 20)
ALIASES = {
    "wrist_image_left": "wrist",
    "exterior_image_1_left": "left",
    "exterior_image_2_left": "right",
}
SPEC = ObservationSpec(
    ("wrist", "left", "right"),
    HW,
    8,
    (18, 20),
    ALIASES,
    frozenset(
        {
            *("seed", "noise", "num_inference_steps", "enable_cuda_graph", "enable_prefix_cache"),
            *("prev_chunk_left_over", "inference_delay", "execution_horizon"),
            *("guidance_scale", "action_horizon", "prefix_attention_schedule"),
        }
    ),
)
HORIZON = 4


def actions_of(observation: Mapping[str, Any], options: Mapping[str, Any]) -> np.ndarray:
    """(HORIZON, 8) float32: the state, moved by the images' means, the prompt and the seed."""
    means = sum(float(np.mean(image)) for image in observation["images"].values())
    offset = np.float32(means / 100 + len(observation["prompt"]) + options.get("seed", 0))
    steps = np.arange(HORIZON, dtype=np.float32)[:, None]
    return observation["state"][None] + offset + steps


class StubPolicy:
    name = "stub"

    def __init__(self, spec: ObservationSpec = SPEC) -> None:
        self.spec = spec
        self.delays_s: list[float] = []
        """Of the next calls; the last one stays."""
        self.may_serve = threading.Event()
        self.may_serve.set()
        self.may_warm_up = threading.Event()
        self.may_warm_up.set()
        self.started = threading.Semaphore(0)
        self.seen: list[Mapping[str, Any]] = []
        self.options: list[Mapping[str, Any]] = []
        self.threads: set[str] = set()
        self.resets: list[str | None] = []
        self.num_warmings = 0

    def describe(self) -> Mapping[str, Any]:
        return {"task": "actions"}

    def metadata(self) -> Mapping[str, Any]:
        return {"model": "stub", "output": {"action_horizon": HORIZON, "action_dim": 8}}

    def warm_up(self) -> None:
        self.may_warm_up.wait(10)

    def keep_warm(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.num_warmings += 1

    def reset(self, session_id: str | None) -> None:
        self.resets.append(session_id)

    def prepare(self, requests: Sequence[Request]) -> list[Request | Reply | Exception]:
        (request,) = requests
        if request.inputs["options"].get("seed", 0) < 0:
            return [InputError("[option] seed is below 0")]
        return [request]

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        (request,) = requests
        observation, options = request.inputs["observation"], request.inputs["options"]
        self.threads.add(threading.current_thread().name)
        self.seen.append(observation)
        self.options.append(options)
        self.started.release()
        if self.delays_s:
            time.sleep(self.delays_s.pop(0) if len(self.delays_s) > 1 else self.delays_s[0])
        self.may_serve.wait(10)
        if observation["prompt"] == "fail":
            return [ZeroDivisionError("secret")]
        actions = actions_of(observation, options)
        if observation["prompt"] == "nan":
            actions[2, 5] = np.nan
        facts = {"timings": {"denoise_ms": 1.0}, "cache": {"enabled": True, "hit": False}}
        outputs = {"actions": actions, "actions_model": actions * 2}
        return [Reply(outputs, "exact", "stub", {"infer": 5.0, "denoise": 1.0}, facts)]

    def snapshot(self) -> Mapping[str, float]:
        return {"recordings": 3.0}

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
