"""How fast is a robot policy, and what do its recordings take? One variant in one process.

Random weights of the published sizes (or the shipped tiny model), one observation after another,
the instruction kept. In one run, in turns: the unfused direct call (one kernel per operation), the
direct call, ``torch.compile`` over the unfused one, and the recorded call.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ostinato.bench import policy_memory
from ostinato.bench.measure import device_ms, in_turns, level, mib, synchronize
from ostinato.bench.policy_kernels import kernels_apart
from ostinato.bench.policy_package import load_variant
from ostinato.bench.policy_peers import Peer, Peers
from ostinato.errors import ConfigError
from ostinato.policy.flux3_action.load import Loaded
from ostinato.policy.flux3_action.random_package import VARIANTS

REPEATS = {"sd": 300, "gd": 100, "base": 60}
NAMES = tuple(f"{name}{suffix}" for name in VARIANTS for suffix in ("", "-fp8r"))
COMPILED = ("sd", "base")
"""Variants beside which ``torch.compile`` is measured; it takes minutes."""
SHARE_OF_STAGES = 4
"""Stages apart are measured a quarter as often as whole calls."""
EVERY_UNFUSED = 5
"""The unfused call takes as long as the others together: it is made in every fifth turn."""


@dataclass(frozen=True)
class Settings:
    """What is measured. ``repeats``: whole calls of each peer, ``None`` the variant's own number;
    ``seconds``: when the loop of whole calls ends at the latest; ``compile_mode``: ``None`` leaves
    ``torch.compile`` out. ``model``: ``tiny-flux3-action`` instead of the published sizes.
    ``offloads_text``: the text encoder stays on the host. ``only_memory``: no time is measured.
    ``with_kernels``: their GPU time is taken first, in a process of its own.
    """

    variant: str
    device: torch.device
    repeats: int | None = None
    seconds: float = 120.0
    compile_mode: str | None = "reduce-overhead"
    model: str | None = None
    offloads_text: bool = False
    only_memory: bool = False
    with_kernels: bool = True

    def __post_init__(self) -> None:
        if self.variant not in NAMES:
            raise ConfigError(f"variant is {self.variant!r}; expected one of {', '.join(NAMES)}")
        if self.repeats is not None and self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}; expected at least 1")

    @property
    def num_calls(self) -> int:
        return self.repeats or REPEATS[self.variant.partition("-")[0]]


class Findings:
    """Results by section. A section that fails is an error among them, not the end."""

    def __init__(self, keep: Callable[[dict[str, Any]], None]) -> None:
        self.rows: dict[str, Any] = {}
        self._keep = keep

    def section(self, name: str, measure: Callable[[], Any]) -> Any:
        """Measure, note result and seconds, and hand everything found so far to ``keep``."""
        begin = time.perf_counter()
        result = None
        try:
            result = measure()
            if result is not None:
                self.rows[name] = result
        except Exception as error:
            trace = traceback.format_exc().splitlines()[-12:]
            self.rows.setdefault("errors", {})[name] = {"error": repr(error)[:500], "trace": trace}
        seconds = self.rows.setdefault("section_seconds", {})
        seconds[name] = round(time.perf_counter() - begin, 2)
        self._keep(self.rows)
        return result


def measure(
    settings: Settings, keep: Callable[[dict[str, Any]], None] = lambda rows: None
) -> dict[str, Any]:
    """Everything about one variant, as plain values; ``errors`` holds sections that failed.

    ``keep`` gets what was found after each section. Times are milliseconds, memory MiB.
    """
    begin = time.perf_counter()
    findings = Findings(keep)
    findings.rows |= {
        "variant": settings.variant,
        "device": str(settings.device),
        "offloads_text": settings.offloads_text,
    }
    if settings.with_kernels and not settings.only_memory:
        apart = (settings.variant, settings.device, settings.model)
        findings.section("kernels", lambda: kernels_apart(*apart))
    begin_load = time.perf_counter()
    loaded = load_variant(
        settings.variant,
        settings.device,
        settings.model,
        text_device=torch.device("cpu") if settings.offloads_text else None,
    )
    findings.rows["load_seconds"] = round(time.perf_counter() - begin_load, 2)
    findings.rows["weights"] = _weights(loaded, settings.device)
    with Peers(loaded, offloads_text=settings.offloads_text) as peers:
        findings.section("first calls", lambda: _first_calls(peers))
        before = findings.section("memory of direct calls", lambda: policy_memory.direct(peers))
        findings.section("first graph", lambda: policy_memory.first_graph(settings.device))
        findings.section("ready", lambda: policy_memory.ready(peers, before))
        findings.section("exactness", lambda: _exactness(peers))
        findings.section("peak memory", lambda: policy_memory.whole(peers))
        if not settings.only_memory:
            _measure_times(findings, peers, settings)
    findings.rows["seconds"] = round(time.perf_counter() - begin, 1)
    keep(findings.rows)
    return findings.rows


def _measure_times(findings: Findings, peers: Peers, settings: Settings) -> None:
    findings.section("idle", lambda: _idle(peers, findings.rows, settings.device))
    findings.section("stages", lambda: _stages(peers, settings))
    findings.section("total", lambda: _total(peers, settings))
    findings.section("ratios", lambda: _ratios(findings.rows["total"]))
    if settings.compile_mode is not None and settings.variant in COMPILED:
        findings.section("compiled", lambda: _compiled(peers, settings))


def _weights(loaded: Loaded, device: torch.device) -> dict[str, Any]:
    parts = {"transformer": loaded.model.dit, "video_vae": loaded.model.vae, "text": loaded.text}
    sizes = {f"{n}_mib": mib(sum(p.nbytes for p in m.parameters())) for n, m in parts.items()}
    found = level(device)
    return sizes | {"reserved_mib": mib(found.reserved), "peak_mib": mib(found.peak_reserved)}


def _first_calls(peers: Peers) -> dict[str, float]:
    """Each bucket's first direct call: kernels are compiled and gated, the caption is encoded."""
    seconds = {}
    for name, observation in peers.observations.items():
        begin = time.perf_counter()
        peers.policy.infer(observation, enable_cuda_graph=False)
        seconds[f"{name}_s"] = round(time.perf_counter() - begin, 2)
    return seconds


def _exactness(peers: Peers) -> list[dict[str, Any]]:
    """Recorded against direct on further observations, seeds, prefixes, in both buckets."""
    rows = []
    chunk = peers.policy.config.chunk_size
    for i, (name, base) in enumerate([*peers.observations.items()] * 2):
        observation = peers.another(base, seed=i + 1)
        wishes: dict[str, Any] = {"seed": i}
        if i % 2:
            left = np.linspace(-1, 1, chunk * 8, dtype=np.float32).reshape(chunk, 8)
            wishes |= {"prev_chunk_left_over": left[: chunk // 2], "inference_delay": 4}
        got = peers.recorded.infer(observation, **wishes)
        want = peers.direct.infer(observation, **wishes)
        loose = peers.unfused.infer(observation, **wishes)
        actions, expected = got["model_actions"], want["model_actions"]
        rows.append(
            {
                "bucket": name,
                "recording": got["recording"],
                "equal_bytes": actions.tobytes() == expected.tobytes(),
                "largest_difference": float(np.abs(actions - expected).max()),
                "largest_difference_of_unfused": float(
                    np.abs(loose["model_actions"] - expected).max()
                ),
                "largest_value": float(np.abs(expected).max()),
            }
        )
    return rows


def _idle(peers: Peers, rows: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Device time of each stage and the share of it in which no kernel runs, in percent.

    Kernels are those of the direct call, which a recording repeats. ``queued``: the host was ahead.
    """
    found: dict[str, Any] = {}
    for peer in (peers.unfused, peers.direct, peers.recorded):
        stages = peer.stages(peers.short)
        stages.observe()
        for name, call in (("observation", stages.observe), ("denoise", stages.denoise)):
            own = "unfused" if peer is peers.unfused else "direct"
            kernels = rows.get("kernels", {}).get(own, {}).get(name, {})
            busy_ms = kernels.get("kernels_ms", 0.0) + kernels.get("copies_ms", 0.0)
            row: dict[str, Any] = {}
            for spelling, is_queued in (("", False), ("queued_", True)):
                # few denoisings, which take base seconds; an observation as warm as one in service
                repeats = 31 if name == "observation" else 3
                took_ms = device_ms(call, device, is_queued=is_queued, repeats=repeats)
                row[f"{spelling}event_ms"] = round(took_ms, 4)
                if busy_ms:
                    share = 100 * (1 - busy_ms / took_ms)
                    row[f"{spelling}idle_percent"] = round(share, 2)
            found.setdefault(peer.name, {})[name] = row
    return found


def _compiled(peers: Peers, settings: Settings) -> dict[str, Any]:
    """Seconds until the compiled peer answers at its final speed, and its times beside recorded
    ones. Last, since nobody knows how long it compiles.
    """
    assert settings.compile_mode is not None
    begin = time.perf_counter()
    peer = peers.add_compiled(settings.compile_mode)
    for _ in range(3):
        result = peer.infer(peers.short)
    seconds = time.perf_counter() - begin
    expected = peers.direct.infer(peers.short)["model_actions"]
    calls = {one.name: lambda one=one: one.infer(peers.short) for one in (peer, peers.recorded)}
    times = in_turns(calls, settings.device, settings.num_calls, within_s=settings.seconds / 2)
    return {
        "mode": settings.compile_mode,
        "seconds": round(seconds, 1),
        "largest_difference": float(np.abs(result["model_actions"] - expected).max()),
        "total": times,
        "ratios": _ratios(times),
    }


def _stages(peers: Peers, settings: Settings) -> dict[str, Any]:
    """Each stage from call to idle device, peers in turns; a denoising follows its observation."""
    made = {peer.name: peer.stages(peers.short) for peer in peers.all}
    num = max(1, settings.num_calls // SHARE_OF_STAGES)
    calls: dict[str, Callable[[], Any]] = {}
    for name, stages in made.items():
        calls[f"{name}: observation"] = stages.observe
        calls[f"{name}: denoise"] = stages.denoise
    in_turns(calls, settings.device, 2, within_s=settings.seconds)  # warm
    rare = {name: EVERY_UNFUSED for name in calls if name.startswith("unfused")}
    times = in_turns(calls, settings.device, num, within_s=settings.seconds / 2, rare=rare)
    found: dict[str, Any] = {name: {} for name in made}
    for key, value in times.items():
        name, _, stage = key.partition(": ")
        found[name][stage] = value
    return found


def _total(peers: Peers, settings: Settings) -> dict[str, Any]:
    """Observation on the host to actions on the host, peers in turns."""

    def call(peer: Peer) -> Callable[[], Any]:
        return lambda: peer.infer(peers.short)

    calls = {peer.name: call(peer) for peer in peers.all}
    in_turns(calls, settings.device, 3, within_s=settings.seconds)  # warm
    synchronize(settings.device)
    found: dict[str, Any] = in_turns(
        calls,
        settings.device,
        settings.num_calls,
        within_s=settings.seconds,
        rare={"unfused": EVERY_UNFUSED},
    )
    route = peers.recorded.infer(peers.short)
    return found | {"route": route["recording"], "timings_ms": route["timings"]}


def _ratios(total: dict[str, Any]) -> dict[str, float]:
    """Medians of whole calls, recorded over each peer."""
    ours = total["recorded"]["median_ms"]
    return {
        f"recorded_to_{name}": round(ours / row["median_ms"], 4)
        for name, row in total.items()
        if isinstance(row, dict) and "median_ms" in row and name != "recorded"
    }
