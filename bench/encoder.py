"""How fast is the encoder, beside transformers, beside its own kernels and beside a direct call?

Published sizes, random bf16 weights shared by ours and transformers. A call goes from patches on
the device to results of its own: layout, upload, replay, copies. Wall time with the device idle at
the start, medians, all variants in turns. Then ours against its direct call (recording off) at 40
sizes. Last, by torch's profiler (which leaves later launches slower), the sum of the kernels' time
in our recorded calls.

    python -m bench.encoder [--family qwen3_vl|qwen2_5_vl] [--depth N] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bench.peers import transformers_vision as peer
from bench.report import Report
from bench.towers import (
    CASES,
    NEVER,
    Setting,
    grid_of,
    kernels_ms,
    make_encoder,
    medians_ms,
    needed_rungs,
    num_patches,
    patches_for,
    set_up,
    synchronize,
)
from ostinato import GraphConfig
from ostinato.kernels.card import num_processors_of
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid, Rung
from ostinato.vision.encoder import Encoder
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import tower_rungs

NUM_RUNGS = 13
SKIPPED_TOP = 4
"""The largest rungs are left out of the sweep: a call takes longest there and shows least."""

SWEEP_SECONDS = 90.0
NEAR, MORE = 0.98, 4
"""Where ours takes this share of the direct call or more, both are measured again, longer."""
MIB = 1 << 20


def sweep_grids(ladder: Sequence[Rung], merge: int, num_rungs: int) -> list[Grid]:
    """Single images whose sizes lie just above, between and on rungs spread over the ladder, and
    one above them all: 3 * num_rungs + 1 sizes.
    """
    sizes = sorted({rung.num_patches for rung in ladder})
    places = sorted(
        {round(i * (len(sizes) - SKIPPED_TOP) / (num_rungs - 1)) for i in range(num_rungs)}
    )
    grids: list[Grid] = []
    for place in places:
        top = sizes[place]
        below = sizes[place - 1] if place else top * 3 // 4
        for wanted in (below + 1, (below + top) // 2, top):
            grid = near_square(wanted, top, merge)
            if grid not in grids:
                grids.append(grid)
    grids.append(near_square(sizes[-1] * 9 // 8, sizes[-1] * 2, merge))
    return grids


def near_square(wanted: int, most: int, merge: int) -> Grid:
    """Rows and columns with at least ``wanted`` patches if possible, at most ``most``."""
    unit = merge * merge
    units = -(-wanted // unit)
    best = (1, 1)
    for rows in range(1, int((most // unit) ** 0.5) + 1):
        columns = min(-(-units // rows), most // unit // rows)
        score = (abs(rows * columns - units), columns - rows)
        if columns >= rows and score < (abs(best[0] * best[1] - units), best[1] - best[0]):
            best = (rows, columns)
    return (1, best[0] * merge, best[1] * merge)


class Bench:
    """One tower with its two encoders: recorded, and with recording off."""

    def __init__(self, setting: Setting, top: int, num_rungs: int) -> None:
        self.setting = setting
        config = setting.config
        self.cases = {name: [grid_of(config, i) for i in items] for name, items in CASES.items()}
        self.peer_configs = peer.configs_of(setting.peer)
        ladder = tower_rungs(config, top=top, num_processors=num_processors_of(setting.device))
        self.cases = {n: g for n, g in self.cases.items() if num_patches(g) <= top}
        self.sweep = sweep_grids(ladder, config.merge_size, num_rungs)
        batches = [*self.cases.values(), *([grid] for grid in self.sweep)]
        self.rungs = needed_rungs(config, ladder, batches)
        graph = GraphConfig(min_hits=NEVER, promote_hits=NEVER)  # bare replays take no lock
        self.runner = Runner.on(setting.device, graph)
        self.encoder, self.recorded = make_encoder(setting, self.runner, self.rungs, graph)
        off = GraphConfig(mode="off")
        self.direct, _ = make_encoder(setting, self.runner, self.rungs, off)

    def warm_up(self) -> dict[str, Any]:
        begin = time.perf_counter()
        self.encoder.warm_up()
        synchronize(self.setting.device)
        return {"seconds": round(time.perf_counter() - begin, 2), **self.held()}

    def held(self) -> dict[str, Any]:
        stats = self.encoder.stats()
        return {
            "num_rungs": len(self.rungs),
            "num_recordings": stats.num_recordings,
            "num_refused": stats.num_refused,
            "refusals": list(stats.refusals.values())[:3],
            "MiB": round(stats.device_bytes_held / MIB, 1),
            "recording_seconds": round(stats.recording_seconds, 2),
        }

    def record_exact(self) -> dict[str, Any]:
        """What promotion does off the path once a size came often."""
        begin = time.perf_counter()
        for grids in self.cases.values():
            layout = self.recorded.layouts.exact(grids)
            self.recorded.record(self.recorded.exact_rung(layout), layout)
        synchronize(self.setting.device)
        return {"seconds": round(time.perf_counter() - begin, 2), **self.held()}

    def ladder_cases(self, repeats: int) -> list[dict[str, Any]]:
        """The cases while only rungs are recorded."""
        return [self._against_direct(n, g, repeats) for n, g in self.cases.items()]

    def sweep_rows(self, repeats: int) -> list[dict[str, Any]]:
        """Ours against direct; what does not fit into the time is left out."""
        begin, rows = time.perf_counter(), []
        for t, h, w in self.sweep:
            if time.perf_counter() - begin < SWEEP_SECONDS:
                rows.append(self._against_direct(f"{h}x{w}", [(t, h, w)], repeats))
        return rows

    def _against_direct(self, name: str, grids: list[Grid], repeats: int) -> dict[str, Any]:
        x = patches_for(self.setting, grids)
        calls = {
            "ours_ms": lambda: self.encoder.encode_patches(x, grids),
            "direct_ms": lambda: self.direct.encode_patches(x, grids),
        }
        times = medians_ms(calls, self.setting.device, repeats)
        if times["ours_ms"] > NEAR * times["direct_ms"]:
            times = medians_ms(calls, self.setting.device, repeats * MORE)
        row = {"case": name, "patches": num_patches(grids), **served(self.encoder, x, grids)}
        row |= {**times, "ratio": round(times["ours_ms"] / times["direct_ms"], 4)}
        row |= self._distance(x, grids)
        print(row, flush=True)
        return row

    def _distance(self, x: torch.Tensor, grids: list[Grid]) -> dict[str, Any]:
        """Relative distance of ours from the direct call, and whether the bytes are equal."""
        ours = torch.cat([e.packed for e in self.encoder.encode_patches(x, grids)])
        want = torch.cat([e.packed for e in self.direct.encode_patches(x, grids)])
        gap = ((ours.float() - want.float()).norm() / want.float().norm()).item()
        return {"distance": round(gap, 6), "equal_bytes": torch.equal(ours, want)}

    def peer_cases(self, repeats: int) -> list[dict[str, Any]]:
        """Ours, direct and transformers in turns."""
        rows = []
        for name, grids in self.cases.items():
            x = patches_for(self.setting, grids)
            grid = torch.tensor(grids, device=self.setting.device)
            calls: dict[str, Any] = {
                "ours_ms": lambda x=x, g=grids: self.encoder.encode_patches(x, g),
                "direct_ms": lambda x=x, g=grids: self.direct.encode_patches(x, g),
            }
            for attention in ("sdpa", "flash"):
                calls[f"transformers_{attention}_ms"] = self._peer(attention, x, grid)
            times = medians_ms(calls, self.setting.device, repeats)
            theirs = min(times["transformers_sdpa_ms"], times["transformers_flash_ms"])
            row = {"case": name, "patches": num_patches(grids), **served(self.encoder, x, grids)}
            row |= {**times, "times_faster": round(theirs / times["ours_ms"], 3)}
            row |= {"ratio_to_direct": round(times["ours_ms"] / times["direct_ms"], 4)}
            row |= self._distance(x, grids)
            row |= bare_replay_ms(self.recorded, grids, self.setting.device)
            print(row, flush=True)
            rows.append(row)
        return rows

    def _peer(self, attention: str, x: torch.Tensor, grid: torch.Tensor) -> Any:
        def call() -> Any:
            peer.use_attention(self.peer_configs, attention)
            return peer.run(self.setting.peer, x, grid)

        return call


PAUSE_SECONDS = 0.03
"""Before each call whose kernels are added up, and before each that is compared with the sum."""

PAUSED_CALLS = 15


WAKE_CYCLES = 5_000_000
"""Nearly 3 ms of a kernel that only waits: a card that has rested takes its first work slowly."""


def after_a_pause(call: Callable[[], Any], device: torch.device, times: list[float]) -> None:
    """One call of a card that has rested and is awake; adds its milliseconds to ``times``. The host
    stays awake, too, since it would begin slower after a sleep.
    """
    begin = time.perf_counter() + PAUSE_SECONDS
    while time.perf_counter() < begin:
        pass
    if device.type == "cuda":
        torch.cuda._sleep(WAKE_CYCLES)
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    times.append((time.perf_counter() - begin) * 1e3)


def with_kernels(rows: list[dict[str, Any]], bench: Bench) -> list[dict[str, Any]]:
    """The cases, each with the sum of its kernels' time beside it.

    A card under steady work lowers its clock, and a profiler makes pauses, so the two would be of
    different clocks: the calls that are compared come after equal pauses, with and without it.
    First all without: once a profiler was there, launches of graphs stay slower.
    """
    device = bench.setting.device
    times: dict[str, list[float]] = {row["case"]: [] for row in rows}
    calls = {}
    for name, passed in times.items():
        grids = bench.cases[name]
        x = patches_for(bench.setting, grids)
        ours = partial(bench.encoder.encode_patches, x, grids)
        direct = partial(bench.direct.encode_patches, x, grids)
        calls[name] = (partial(after_a_pause, ours, device, passed), direct)
    for paused, _ in calls.values():
        for _ in range(PAUSED_CALLS):
            paused()
    for row in rows:
        paused, direct = calls[row["case"]]
        row["paused_ms"] = round(statistics.median(times[row["case"]]), 4)
        row |= kernels_ms(paused, device, PAUSED_CALLS)
        row |= {"direct_kernels_ms": kernels_ms(direct, device)["kernels_ms"]}
        if row["kernels_ms"]:
            row["ratio_to_kernels"] = round(row["paused_ms"] / row["kernels_ms"], 4)
            work_ms = row["kernels_ms"] + row["copies_ms"]  # copies inside the recording
            row["ratio_to_device_work"] = round(row["paused_ms"] / work_ms, 4)
    return rows


def served(encoder: Encoder, x: torch.Tensor, grids: Sequence[Grid]) -> dict[str, Any]:
    routes = [e.route for e in encoder.encode_patches(x, grids)]
    return {
        "route": "+".join(sorted({r.route for r in routes})),
        "reason": routes[0].reason,
        "rung": dict(routes[0].rung).get("patches"),
    }


def bare_replay_ms(
    recorded: RecordedTower, grids: Sequence[Grid], device: torch.device
) -> dict[str, float]:
    """Device time of the exact recording alone: kernels and the gaps between them."""
    entry = recorded.entry_of(recorded.exact_rung(recorded.layouts.exact(grids)))
    if entry is None or device.type != "cuda":
        return {}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(7):
        begin.record()
        entry.recorded.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return {"bare_replay_ms": round(sorted(times)[3], 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=("qwen3_vl", "qwen2_5_vl"), default="qwen3_vl")
    parser.add_argument("--depth", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    report = Report(f"encoder-{options.family}" + ("-dry" if options.dry else ""), options.out)
    top, num_rungs = (256, 3) if options.dry else (16_384, NUM_RUNGS)
    with torch.inference_mode():
        setting = report.section(
            "tower",
            lambda: set_up(options.family, options.depth, is_dry=options.dry),
            is_kept=False,
        )
        if setting is None:
            return report.finish()
        report.rows["depth"] = setting.config.depth
        bench = Bench(setting, top, num_rungs)
        few = 2 if options.dry else 5
        report.section("warm_up", bench.warm_up)
        report.section("ladder_cases", lambda: bench.ladder_cases(few))
        report.section("record_exact", bench.record_exact)
        report.section("cases", lambda: bench.peer_cases(2 if options.dry else options.repeats))
        report.section("sweep", lambda: bench.sweep_rows(few))
        if "cases" in report.rows:
            report.section("cases", lambda: with_kernels(report.rows["cases"], bench))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
