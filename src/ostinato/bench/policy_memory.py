"""What a policy's recordings take: memory beyond its direct calls, and seconds until ready.

Reserved bytes are the allocator's, driver bytes the whole device's. All levels are taken with an
idle device and an empty cache. MiB are 2**20 bytes.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import ostinato
from ostinato.bench.measure import Level, level, mib, synchronize
from ostinato.bench.policy_peers import Peers
from ostinato.recording.config import GraphConfig
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner


def direct(peers: Peers) -> dict[str, Any]:
    """The peak of direct calls of both buckets, above everything that lasts."""
    device = peers.policy.device
    before = level(device, is_reset=True)
    peers.peaks.append(before.peak_reserved)
    for observation in peers.observations.values():
        peers.policy.infer(observation, enable_cuda_graph=False)
    synchronize(device)
    after = level(device)
    return {
        "lasting_mib": mib(before.reserved),
        "peak_reserved_mib": mib(after.peak_reserved),
        "peak_allocated_mib": mib(after.peak_allocated),
        "driver_mib": mib(after.driver),
    }


def first_graph(device: torch.device) -> dict[str, Any]:
    """What the process's first recording leaves, whatever it records: paid once."""
    before = level(device)
    runner = Runner.on(device, GraphConfig())
    served = runner.serve(Region("first", torch.sin), GraphConfig(min_hits=1))
    x = torch.ones(1 << 20, device=device)
    with torch.inference_mode(), ostinato.route("exact"):
        served.call((x,), {})
    runner.close()
    return _between(before, level(device))


def ready(peers: Peers, before: dict[str, Any] | None) -> dict[str, Any]:
    """Record everything for two buckets with kernels warm: seconds, and memory that it takes.

    ``held_mib``: what is taken while nothing runs, beyond the same before. ``peak_mib``: highest
    reserved memory of recorded calls of both buckets beyond that of direct ones;
    ``first_answer_peak_mib``: the same of the first call, which is compared with a direct one.
    """
    policy, device = peers.policy, peers.policy.device
    start = level(device, is_reset=True)
    begin = time.perf_counter()
    policy.warm_up()
    synchronize(device)
    seconds = time.perf_counter() - begin
    end = level(device, is_reset=True)
    policy.infer(peers.short)
    policy.wait_idle()  # the first answer has been compared with a direct call beside it
    doubted = level(device, is_reset=True)
    for observation in peers.observations.values():
        policy.infer(observation)
    serving = level(device)
    peers.peaks += [x.peak_reserved for x in (start, end, doubted, serving)]
    recording = _between(start, end) | {"peak_reserved_mib": mib(end.peak_reserved)}
    found: dict[str, Any] = {"seconds": round(seconds, 2), "while_recording": recording}
    held = _between(start, serving)
    found["held_mib"] = held["reserved_mib"] + held["driver_beyond_reserved_mib"]
    if before is not None:
        direct_mib = before["peak_reserved_mib"]
        found["peak_mib"] = round(mib(serving.peak_reserved) - direct_mib, 1)
        found["first_answer_peak_mib"] = round(mib(doubted.peak_reserved) - direct_mib, 1)
    stats = policy.stats()["regions"]
    found["regions"] = {
        name: {
            "num_recordings": s.num_recordings,
            "num_refused": s.num_refused,
            "refusals": list(s.refusals.values())[:3],
            "recording_seconds": round(s.recording_seconds, 2),
            "own_mib": mib(s.bytes_held),
        }
        for name, s in stats.items()
    }
    found["device_mib"] = mib(stats["loop"].device_bytes_held)
    found["verdict"] = policy.metadata["runtime"]["verdict"]
    return found


def whole(peers: Peers) -> dict[str, Any]:
    """The process so far, loading included: highest reserved memory, and what lies beyond it."""
    found = level(peers.policy.device)
    peak = max(*peers.peaks, found.peak_reserved)
    beyond = found.driver - found.reserved
    return {
        "peak_reserved_gb": round(peak / 1e9, 3),
        "driver_beyond_reserved_gb": round(beyond / 1e9, 3),
        "lasting_reserved_gb": round(found.reserved / 1e9, 3),
    }


def _between(before: Level, after: Level) -> dict[str, Any]:
    reserved = mib(after.reserved - before.reserved)
    driver = mib(after.driver - before.driver)
    return {
        "reserved_mib": reserved,
        "driver_mib": driver,
        "driver_beyond_reserved_mib": round(driver - reserved, 1),
    }
