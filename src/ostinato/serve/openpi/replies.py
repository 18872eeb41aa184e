"""An answer as each dialect wants it. Importable without torch.

Openpi's chunk broker slices the first axis of every array of a reply: ``actions`` and
``actions_model`` have the chunk there, and everything else is plain values in maps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ostinato.serve.openpi.codec import packb
from ostinato.serve.openpi.messages import Form
from ostinato.serve.openpi.wishes import Wishes

Array = np.ndarray[Any, Any]

OWN_STAGES = ("decode", "prepare", "queue", "infer")
"""Stages of the server; those of the policy stand under ``timings``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Safe actions (horizon, D) and how they were made. ``actions_model``: the same steps in model
    space, or nothing. ``facts``: plain maps of the policy (``timings``, ``cache``, ``recording``).
    """

    actions: Array
    actions_model: Array | None
    wishes: Wishes
    route: str
    stage_ms: Mapping[str, float]
    num_clamped: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


def openpi_map(answer: Answer, prev_total_ms: float | None = None) -> dict[str, Any]:
    """Openpi's reply. ``prev_total_ms``: of the connection's previous request."""
    reply: dict[str, Any] = {"actions": answer.actions}
    if answer.actions_model is not None:
        reply["actions_model"] = answer.actions_model
    infer_ms = round(answer.stage_ms.get("infer", 0.0), 3)
    timing = {"infer_ms": infer_ms}
    if prev_total_ms is not None:
        timing["prev_total_ms"] = round(prev_total_ms, 3)
    timing |= {f"{s}_ms": _rounded(answer, s) for s in OWN_STAGES[:3] if s in answer.stage_ms}
    reply["server_timing"] = timing
    reply["policy_timing"] = {"infer_ms": infer_ms}
    return reply | dict(answer.facts) | {"ostinato": about(answer)}


def about(answer: Answer) -> dict[str, Any]:
    """Ids and the route; what was clamped or ignored, where something was."""
    found: dict[str, Any] = {"request_id": answer.wishes.request_id}
    if answer.wishes.session_id is not None:
        found["session_id"] = answer.wishes.session_id
    found["route"] = answer.route
    if answer.num_clamped:
        found["num_clamped"] = answer.num_clamped
    if answer.wishes.ignored:
        found["ignored"] = list(answer.wishes.ignored)
    return found


def envelope(answer: Answer, form: Form, model: str) -> dict[str, Any]:
    """The body of an answered generation."""
    if form.is_raw:
        body = openpi_map(answer)
        if not form.is_numpy:
            body |= {k: v.tolist() for k, v in body.items() if isinstance(v, np.ndarray)}
        return body if form.has_timings else _without(body, "server_timing", "timings")
    cache = answer.facts.get("cache", {})
    data = [_datum(answer.actions, form)]
    if answer.actions_model is not None:
        data[0]["action_model"] = _datum(answer.actions_model, form)["action"]
    horizon, dim = answer.actions.shape
    body = {
        "id": f"act-{answer.wishes.request_id}",
        "object": "action.generation",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": {
            "batch_size": 1,
            "action_horizon": horizon,
            "action_dim": dim,
            "denoise_steps": answer.facts.get("num_inference_steps"),
            "prefix_cache_hit": bool(cache.get("hit", False)),
        },
        "cache": {**cache, "scope": "caption", "mode": "exact"} if cache else {"enabled": False},
        "ostinato": about(answer),
    }
    if form.has_timings:
        own = {f"{s}_ms": _rounded(answer, s) for s in OWN_STAGES if s in answer.stage_ms}
        body["timings"] = {**answer.facts.get("timings", {}), **own}
    return body


def _datum(actions: Array, form: Form) -> dict[str, Any]:
    action = {
        "type": "continuous",
        "dtype": str(actions.dtype),
        "shape": list(actions.shape),
        "values": actions if form.is_numpy else actions.tolist(),
    }
    return {"index": 0, "input_index": 0, "candidate_index": 0, "action": action}


def encode(body: Mapping[str, Any], *, is_msgpack: bool) -> bytes:
    """On the wire. JSON has no place for what is not finite, so it is never written."""
    if is_msgpack:
        return packb(body)
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _rounded(answer: Answer, stage: str) -> float:
    return round(answer.stage_ms[stage], 3)


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}
