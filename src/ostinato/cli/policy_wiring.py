"""Joins a loaded policy to a server: the adapter between the robots' contract and torch."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch

import ostinato
from ostinato.cli.config import Settings
from ostinato.errors import InputError, WeightsError
from ostinato.policy.cameras import ALIASES
from ostinato.policy.contract import Options, read_options
from ostinato.serve.openpi.contract import ObservationSpec, PolicyService
from ostinato.serve.service import Reply, Request
from ostinato.weights.config import read_json
from ostinato.weights.files import SubFolder, find_shipped, open_files
from ostinato.weights.manifest import MANIFEST

POLICY_TYPES = frozenset({"flux3_action"})
PACKAGE_KIND = "policy_export"
COMPOSITE_HW = {"droid": (540, 640)}
"""Layouts that know one image instead of three, and its size."""


class ServedPolicy(ostinato.Policy, Protocol):
    """What a server needs of a policy besides answers."""

    def warm_up(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def is_policy(model: str, variant: str = "base") -> bool:
    """Whether ``model`` is a policy package and no encoder; reads its configuration only."""
    shipped = find_shipped(model)
    if shipped is not None:
        return read_json(shipped, model).get("model_type") in POLICY_TYPES
    try:
        manifest = _manifest(model, variant)
    except WeightsError:
        return False  # whoever loads it says what is wrong with it
    return manifest is not None and read_json(manifest, model).get("kind") == PACKAGE_KIND


def _manifest(model: str, variant: str) -> Path | None:
    """A variant's own, or the package's."""
    files = open_files(model)
    own = None if variant == "base" else SubFolder(files, f"variants/{variant}").find(MANIFEST)
    return own or files.find(MANIFEST)


def fingerprint(model: str, variant: str = "base") -> str | None:
    """sha256 of what stands for all weights: the package's manifest, or the tiny model's sizes."""
    path = find_shipped(model) or _manifest(model, variant)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


class PolicyAdapter:
    """A policy behind the robots' contract."""

    def __init__(
        self, name: str, policy: ServedPolicy, *, facts: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        self._policy = policy
        self._facts = dict(facts or {})
        self._events: list[str] = []
        self._lock = threading.Lock()
        self._verdict: str | None = None
        inputs = policy.metadata["input"]
        self._spec = ObservationSpec(
            tuple(inputs["camera_keys"]),
            (int(inputs["camera_hw"][0]), int(inputs["camera_hw"][1])),
            int(inputs["state_dim"]),
            COMPOSITE_HW.get(inputs.get("camera_layout", "")),
            {alias: camera for alias, camera in ALIASES.items() if camera in inputs["camera_keys"]},
            frozenset(field.name for field in fields(Options)),
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def spec(self) -> ObservationSpec:
        return self._spec

    def metadata(self) -> Mapping[str, Any]:
        """The policy's, with what the loader knows."""
        return {**self._policy.metadata, **self._facts}

    def describe(self) -> Mapping[str, Any]:
        return {"task": "actions", **self.metadata()}

    def warm_up(self) -> None:
        """Record, then answer once, so that nothing is done for the first time later."""
        began_s = perf_counter()
        self._policy.warm_up()
        self.keep_warm()
        self._note(f"ready to answer after {perf_counter() - began_s:.1f} s")

    def keep_warm(self) -> None:
        """A grey picture. Direct until a robot was answered: the first recorded answer is checked
        against a direct one, and that should be a robot's own.
        """
        height, width = self._spec.camera_hw
        grey = np.full((height, width, 3), 128, np.uint8)
        observation = {
            "images": dict.fromkeys(self._spec.cameras, grey),
            "state": np.zeros(self._spec.state_dim, np.float32),
            "prompt": "",
        }
        self._policy.infer(observation, enable_cuda_graph=None if self._verdict else False)

    def prepare(self, requests: Sequence[Request]) -> list[Request | Reply | Exception]:
        """Options are checked before they wait."""
        prepared: list[Request | Reply | Exception] = []
        for request in requests:
            try:
                read_options({}, request.inputs["options"])
                prepared.append(request)
            except InputError as error:
                prepared.append(InputError(f"[option] {error}"))
        return prepared

    def serve(self, requests: Sequence[Request]) -> list[Reply | Exception]:
        """One after the other."""
        return [self._serve(request) for request in requests]

    def _serve(self, request: Request) -> Reply | Exception:
        began_s = perf_counter()
        try:
            result = self._policy.infer(request.inputs["observation"], **request.inputs["options"])
        except KeyError as error:
            return InputError(f"[observation] {error.args[0]}")
        except Exception as error:
            return error
        infer_ms = (perf_counter() - began_s) * 1e3
        self._look_at_verdict()
        return _reply(result, infer_ms)

    def reset(self, session_id: str | None) -> None:
        self._policy.reset()

    def snapshot(self) -> Mapping[str, float]:
        """Counters of the recordings, what is kept of instructions, and the verdict."""
        stats = self._policy.stats()
        numbers = {k: float(v) for k, v in stats.items() if isinstance(v, int | float)}
        for region, counted in stats.get("regions", {}).items():
            numbers[f"{region}_num_recordings"] = float(counted.num_recordings)
            numbers[f"{region}_num_refused"] = float(counted.num_refused)
            for route, calls in counted.calls.items():
                numbers[f"{region}_calls_{route}"] = float(calls)
        verdict = self._policy.metadata["runtime"].get("verdict")
        if verdict not in (None, "pending"):
            numbers["is_bit_exact"] = float(verdict == "bit-exact")
        return numbers

    def _look_at_verdict(self) -> None:
        verdict = self._policy.metadata["runtime"].get("verdict")
        if verdict not in (None, "pending", self._verdict):
            self._note(f"the first answer, recorded against direct: {verdict}")
            self._verdict = verdict

    def events(self) -> list[str]:
        with self._lock:
            events, self._events = self._events, []
        return events

    def close(self) -> None:
        self._policy.close()

    def _note(self, sentence: str) -> None:
        with self._lock:
            self._events.append(sentence)


def _reply(result: Mapping[str, Any], infer_ms: float) -> Reply:
    actions = np.asarray(result["actions"])
    outputs = {"actions": actions}
    if "model_actions" in result:
        outputs["actions_model"] = np.asarray(result["model_actions"])[: len(actions)]
    routes = {name: str(text) for name, text in result.get("recording", {}).items()}
    names = {text.partition(":")[0] for text in routes.values()}
    timings = {name: float(ms) for name, ms in result.get("timings", {}).items()}
    stage_ms = {n.removesuffix("_ms"): ms for n, ms in timings.items() if n != "total_ms"}
    facts = {
        "timings": {name: round(ms, 3) for name, ms in timings.items()},
        "cache": dict(result.get("cache", {})),
        "recording": routes,
    }
    route = names.pop() if len(names) == 1 else "direct"
    return Reply(outputs, route, "; ".join(routes.values()), {"infer": infer_ms, **stage_ms}, facts)


def load_policy_service(
    model: str, settings: Settings, *, device: str, variant: str = "base"
) -> PolicyService:
    """The service for a policy; its weights are loaded, nothing is recorded yet."""
    chosen = settings.encoder
    policy = ostinato.load_policy(
        model,
        device=device,
        variant=variant,
        dtype=None if chosen.dtype is None else getattr(torch, chosen.dtype),
        graph=ostinato.GraphConfig(
            mode="auto" if settings.is_recording_on else "off",
            budget_bytes=chosen.budget_bytes,
            cache_dir=settings.cache_on(device),
        ),
        warm_up=False,
    )
    space = policy.config.action_space
    facts = {
        "checkpoint_sha256": fingerprint(model, variant),
        "normalization": {"state": space.state is not None, "actions": space.actions is not None},
        "real_time_chunking": {
            "modes": ["guided"],
            "schedules": ["ZEROS", "ONES", "LINEAR", "EXP"],
        },
    }
    return PolicyAdapter(settings.served_name or model, policy, facts=facts)
