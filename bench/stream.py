"""What does a stream of images of every size cost, by each way of recording?

600 requests (``bench/data/stream_sizes.json``), one after the other, from patches on the device to
results of their own, device waited for after each. Ways: ours (ladder recorded before), exact-only
(one graph per layout, recorded on the request's path, unbounded), powers of two only (recorded
before, always padded), direct (nothing recorded). The same tower, Qwen3-VL-8B's width.

    python -m bench.stream [--depth 8] [--ways ours,exact_only,...] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.data.stream_sizes import load
from bench.peers.exact_only import ExactOnly
from bench.report import Report
from bench.towers import Setting, make_encoder, patches_for, set_up, synchronize
from ostinato import GraphConfig
from ostinato.kernels.card import num_processors_of
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid, Rung
from ostinato.vision.encoder import Encoded, Encoder
from ostinato.vision.packing import Load
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import SEGMENT_CAPACITIES, rung_of, tower_rungs

MIB = 1 << 20
Serve = Callable[[torch.Tensor, list[Grid]], Any]


class AlwaysPadded(RecordedTower):
    """Calls directly only what no rung holds."""

    def _direct_us(self, load: Load, busy_us: float) -> float:
        return 1e12


def taken_bytes(device: torch.device) -> int:
    """What is taken of the whole device, the allocator's cache aside."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def run_stream(
    serve: Serve, setting: Setting, requests: Sequence[list[Grid]], most_rows: int
) -> dict[str, Any]:
    """Latency of each request in milliseconds, from patches to finished results."""
    rows = patches_for(setting, [(1, 1, most_rows)])
    times, routes = [], []
    for grids in requests:
        patches = rows[: sum(t * h * w for t, h, w in grids)]
        synchronize(setting.device)
        begin = time.perf_counter()
        result = serve(patches, grids)
        synchronize(setting.device)
        times.append((time.perf_counter() - begin) * 1e3)
        routes.append(served_by(result))
        del result
    ordered = sorted(times)
    return {
        "total_s": round(sum(times) / 1e3, 3),
        "P50_ms": round(ordered[len(ordered) // 2], 3),
        "P99_ms": round(ordered[int(len(ordered) * 0.99)], 3),
        "max_ms": round(ordered[-1], 3),
        "times_ms": [round(t, 2) for t in times],
        "routes": routes,
    }


def served_by(result: Any) -> str:
    """The rungs (patches x segments) of our encoder's calls, "direct" among them; "" for peers."""
    if not (isinstance(result, list) and result and isinstance(result[0], Encoded)):
        return ""
    found = {id(one.route): one.route for one in result}.values()
    return " + ".join(
        "x".join(str(n) for _, n in route.rung) if route.rung else route.route for route in found
    )


class Stream:
    def __init__(self, setting: Setting, requests: Sequence[list[Grid]], top: int) -> None:
        self.setting, self.requests, self.top = setting, requests, top
        self.most_rows = max(sum(t * h * w for t, h, w in grids) for grids in requests)

    def warm(self) -> None:
        """What every way profits from alike: libraries loaded, kernels chosen."""
        encoder = self.direct_encoder()
        for grids in self.requests[:: max(1, len(self.requests) // 12)]:
            encoder.encode_patches(patches_for(self.setting, grids), grids)
        synchronize(self.setting.device)

    def direct_encoder(self) -> Encoder:
        runner = Runner.on(self.setting.device)
        rungs = tower_rungs(self.setting.config, top=self.top)[:1]
        return make_encoder(self.setting, runner, rungs, GraphConfig(mode="off"))[0]

    def ours(self) -> dict[str, Any]:
        """The second start of two: kernels are compiled and chosen, as on a machine in use."""
        graph = GraphConfig()
        rungs = tower_rungs(
            self.setting.config,
            top=self.top,
            num_processors=num_processors_of(self.setting.device),
        )
        cold_s = self._first_start(graph, rungs)
        return self._recorded(graph, rungs, RecordedTower) | {"cold_warm_up_s": cold_s}

    def _first_start(self, graph: GraphConfig, rungs: Sequence[Rung]) -> float:
        """Seconds to record the ladder where no kernel is compiled or chosen yet."""
        runner = Runner.on(self.setting.device, graph)
        encoder = make_encoder(self.setting, runner, rungs, graph)[0]
        begin = time.perf_counter()
        encoder.warm_up()
        synchronize(self.setting.device)
        elapsed_s = time.perf_counter() - begin
        encoder.close()
        runner.close()
        return round(elapsed_s, 2)

    def powers_of_two(self) -> dict[str, Any]:
        config = self.setting.config
        sizes = []
        size = 64
        while size <= self.top:
            sizes.append(size)
            size *= 2
        rungs = [
            rung_of(config, size, segments)
            for size in sorted(sizes, reverse=True)
            for segments in sorted(
                {min(s, size // config.merge_unit) for s in SEGMENT_CAPACITIES}, reverse=True
            )
        ]
        return self._recorded(GraphConfig(mode="ladder"), rungs, AlwaysPadded)

    def _recorded(
        self, graph: GraphConfig, rungs: Sequence[Rung], kind: type[RecordedTower]
    ) -> dict[str, Any]:
        before = taken_bytes(self.setting.device)
        runner = Runner.on(self.setting.device, graph)
        encoder = make_encoder(self.setting, runner, rungs, graph, kind)[0]
        try:
            begin = time.perf_counter()
            encoder.warm_up()
            synchronize(self.setting.device)
            warm_up_s = time.perf_counter() - begin
            warmed = encoder.stats()
            row = run_stream(encoder.encode_patches, self.setting, self.requests, self.most_rows)
            stats = encoder.stats()
            return row | {
                "warm_up_s": round(warm_up_s, 2),
                "num_rungs": len(rungs),
                "num_recordings": stats.num_recordings,
                "recorded_after_warm_up": stats.num_recorded - warmed.num_recorded,
                "num_refused": stats.num_refused,
                "refusals": list(stats.refusals.values())[:3],
                "num_evicted": stats.num_evicted,
                "MiB_recordings": round(stats.device_bytes_held / MIB, 1),
                "MiB_device": round((taken_bytes(self.setting.device) - before) / MIB, 1),
                "waste": round(stats.waste, 4),
                "calls": dict(stats.calls),
                "reasons": dict(Counter(stats.reasons).most_common(8)),
            }
        finally:
            encoder.close()
            runner.close()

    def exact_only(self) -> dict[str, Any]:
        before = taken_bytes(self.setting.device)
        peer = ExactOnly(self.setting.tower, self.setting.device)
        row = run_stream(peer, self.setting, self.requests, self.most_rows)
        taken = taken_bytes(self.setting.device) - before
        return row | {
            "warm_up_s": 0.0,
            "num_recordings": peer.num_recordings,
            "MiB_device": round(taken / MIB, 1),
        }

    def direct(self) -> dict[str, Any]:
        before = taken_bytes(self.setting.device)
        encoder = self.direct_encoder()
        row = run_stream(encoder.encode_patches, self.setting, self.requests, self.most_rows)
        taken = taken_bytes(self.setting.device) - before
        return row | {"warm_up_s": 0.0, "num_recordings": 0, "MiB_device": round(taken / MIB, 1)}


def compare(rows: dict[str, Any]) -> dict[str, Any]:
    """The must of the issue, as numbers; only where all ways were measured."""
    ours = rows["ours"]
    others = [rows[name] for name in ("exact_only", "powers_of_two", "direct")]
    return {
        "lowest_total": ours["total_s"] < min(o["total_s"] for o in others),
        "lowest_P99": ours["P99_ms"] < min(o["P99_ms"] for o in others),
        "share_of_exact_only_bytes": round(
            ours["MiB_device"] / max(rows["exact_only"]["MiB_device"], 1e-9), 4
        ),
        "warm_up_s": ours["warm_up_s"],
    }


WAYS = ("ours", "direct", "powers_of_two", "exact_only")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    question = f"stream-depth-{options.depth}" + ("-dry" if options.dry else "")
    report = Report(question, options.out)
    requests = load()[: options.requests]
    top = 16_384
    if options.dry:
        requests, top = [[(1, h // 4 * 2, w // 4 * 2)] for [(_, h, w), *_] in requests[:40]], 256
    with torch.inference_mode():
        setting = report.section(
            "tower",
            lambda: set_up("qwen3_vl", options.depth, is_dry=options.dry),
            is_kept=False,
        )
        if setting is None:
            return report.finish()
        report.rows["depth"] = setting.config.depth
        report.rows["requests"] = len(requests)
        report.rows["distinct_sizes"] = len({tuple(grids) for grids in requests})
        report.rows["patches"] = [sum(t * h * w for t, h, w in grids) for grids in requests]
        stream = Stream(setting, requests, top)
        report.section("warm", stream.warm, is_kept=False)
        for way in options.ways.split(","):
            row = report.section(way, getattr(stream, way))
            if row is not None:
                shown = {k: v for k, v in row.items() if k not in ("times_ms", "routes")}
                print(way, shown, flush=True)
        if all(way in report.rows for way in WAYS):
            report.section("compare", lambda: compare(report.rows))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
