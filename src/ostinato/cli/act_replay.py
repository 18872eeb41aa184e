"""Runs recorded requests through a policy again and compares: same bytes, and in what time.

Needs no server: a request is read as the server read it, with the settings it was started with.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.errors import ConfigError
from ostinato.serve.openpi.actions import ActionBounds, check_actions
from ostinato.serve.openpi.codec import unpackb
from ostinato.serve.openpi.contract import PolicyService
from ostinato.serve.openpi.intake import Intake, IntakeSettings
from ostinato.serve.openpi.messages import Ask, read_frame, read_generation
from ostinato.serve.openpi.records import Exchange, read_records
from ostinato.serve.openpi.wishes import read_wishes
from ostinato.serve.service import Reply, Request

Array = np.ndarray[Any, Any]
NAMES = ("actions", "actions_model")


@dataclass(frozen=True, slots=True)
class Compared:
    """One exchange. ``difference``: the largest of any action, 0 for equal bytes, infinite where
    shapes differ or nothing was answered; ``error`` says why.
    """

    place: int
    is_same: bool
    difference: float
    recorded_ms: float
    now_ms: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """All of a directory, oldest first."""

    compared: Sequence[Compared] = field(default_factory=list)

    @property
    def num_same(self) -> int:
        return sum(one.is_same for one in self.compared)

    @property
    def is_good(self) -> bool:
        """True when every exchange gave the same bytes."""
        return self.num_same == len(self.compared) > 0

    def summary(self) -> dict[str, Any]:
        """Plain numbers. Milliseconds are of the policy's call, then and now."""
        differences = [one.difference for one in self.compared if not one.is_same]
        finite = [value for value in differences if np.isfinite(value)]
        return {
            "num_exchanges": len(self.compared),
            "num_bit_exact": self.num_same,
            "num_different": len(differences),
            "largest_difference": max(finite, default=0.0),
            "recorded_ms": _percentiles([one.recorded_ms for one in self.compared]),
            "now_ms": _percentiles([one.now_ms for one in self.compared if not one.error]),
            "different": [
                {"place": one.place, "difference": one.difference, "error": one.error}
                for one in self.compared
                if not one.is_same
            ],
        }


def recorded_model(directory: Path) -> str:
    """The model that answered the oldest exchange. Raises ``ConfigError`` where none is kept."""
    first = next(iter(read_records(directory)))
    model = first.server.get("model")
    if not isinstance(model, str):
        raise ConfigError(f"replay {str(directory)!r}: no model is named; give --model")
    return model


def replay(
    directory: Path,
    service: PolicyService,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReplayReport:
    """Every exchange of a ``--record`` directory again, in order.

    Raises ``ConfigError`` for a directory without exchanges and for files that are none.
    """
    exchanges = list(read_records(directory))
    compared = []
    for place, exchange in enumerate(exchanges):
        compared.append(_compare(place, exchange, service))
        progress(place + 1, len(exchanges))
    return ReplayReport(compared)


def _compare(place: int, exchange: Exchange, service: PolicyService) -> Compared:
    recorded_ms = float(exchange.stage_ms.get("infer", float("nan")))
    try:
        now, now_ms = _answer(exchange, service)
    except Exception as error:
        return Compared(place, False, float("inf"), recorded_ms, float("nan"), str(error))
    then = recorded_arrays(exchange)
    pairs = [(then[name], now[name]) for name in then if name in now]
    if not pairs or any(a.shape != b.shape for a, b in pairs):
        reason = f"shapes {_shapes(now)}, recorded {_shapes(then)}"
        return Compared(place, False, float("inf"), recorded_ms, now_ms, reason)
    is_same = all(a.astype(b.dtype).tobytes() == b.tobytes() for a, b in pairs)
    difference = max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in pairs)
    return Compared(place, is_same, 0.0 if is_same else difference, recorded_ms, now_ms)


def _answer(exchange: Exchange, service: PolicyService) -> tuple[dict[str, Array], float]:
    """The actions of today, and the milliseconds of the policy's call."""
    settings = exchange.server.get("intake", {})
    intake = IntakeSettings(settings.get("rename", {}), settings.get("is_resized", False))
    ask = _read(exchange)
    observation, others = Intake(service.spec, intake).read(ask.entries)
    wishes = read_wishes(others, service.spec.options, session_id=ask.session_id)
    request = Request({"observation": observation, "options": wishes.options})
    (prepared,) = service.prepare([request])
    if isinstance(prepared, Exception):
        raise prepared
    (reply,) = service.serve([prepared]) if isinstance(prepared, Request) else [prepared]
    if not isinstance(reply, Reply):
        raise reply
    arrays = {name: reply.outputs[name] for name in NAMES if name in reply.outputs}
    bounds = exchange.server.get("bounds")
    if bounds is not None:
        limits = ActionBounds(tuple(bounds["low"]), tuple(bounds["high"]), bounds["clamp"])
        arrays["actions"], _ = check_actions(arrays["actions"], limits)
    return arrays, float(reply.stage_ms["infer"])


def _read(exchange: Exchange) -> Ask:
    if exchange.dialect != "generation":
        return read_frame(exchange.request)
    is_msgpack = "msgpack" in exchange.content_type
    return read_generation(exchange.request, is_msgpack=is_msgpack, is_numpy=True)


def recorded_arrays(exchange: Exchange) -> dict[str, Array]:
    """What was answered, by name, whatever form it was answered in."""
    data = exchange.reply
    body = json.loads(data) if data[:1] == b"{" else unpackb(data)
    if isinstance(body, np.ndarray):
        return {"actions": body}
    if "data" in body:
        datum = body["data"][0]
        named = {"actions": datum.get("action"), "actions_model": datum.get("action_model")}
        return {n: np.asarray(a["values"], a["dtype"]) for n, a in named.items() if a is not None}
    return {name: np.asarray(body[name]) for name in NAMES if name in body}


def _shapes(arrays: dict[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    good = sorted(value for value in values if np.isfinite(value))
    if not good:
        return {}
    p99 = good[min(len(good) - 1, int(0.99 * len(good)))]
    return {"p50": round(statistics.median(good), 3), "p99": round(p99, 3)}


def summary_text(summary: dict[str, Any]) -> str:
    """What differs, then counts and times."""
    lines = []
    for one in summary["different"]:
        why = one["error"] or f"differs by {one['difference']:.3g}"
        lines.append(f"exchange {one['place']}: {why}")
    lines.append(
        f"{summary['num_exchanges']} exchanges, {summary['num_bit_exact']} bit-exact; "
        f"largest difference {summary['largest_difference']:.3g}"
    )
    for label, key in (("recorded", "recorded_ms"), ("now", "now_ms")):
        times = "  ".join(f"{p.upper()} {ms:.1f} ms" for p, ms in summary[key].items())
        lines.append(f"{label:<9} {times}")
    return "\n".join(lines)
