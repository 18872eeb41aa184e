"""What do fused operators bring? A tower's whole call beside transformers and torch.compile.

Ours goes from patches on the device to results of its own, by its exact recording. ``variants``:
``fast`` (everything this machine has), ``plain`` (without FA3 and cuDNN attention), ``reference``
(bit-exact operators only), ``fp8``. Peers run in turns with ours: transformers with sdpa and flash
attention; where ``--compile`` names a mode, ``torch.compile`` of it at three sizes follows in a
process of its own (first calls take minutes). Published sizes, random bf16 weights, wall medians
on an idle device.

    python -m bench.fused [--family qwen3_vl|qwen2_5_vl] [--variants fast,plain] [--cases 224x224,…]
                          [--compile default,reduce-overhead] [--repeats 20] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from bench.encoder import bare_replay_ms, served
from bench.peers import transformers_vision as peer
from bench.report import Report
from bench.towers import (
    CASES,
    NEVER,
    NoPreprocessor,
    Setting,
    grid_of,
    kernels_ms,
    medians_ms,
    num_patches,
    patches_for,
    set_up,
    synchronize,
)
from ostinato import GraphConfig
from ostinato.kernels.gate import Numerics
from ostinato.kernels.segment_attention.availability import hiding
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid
from ostinato.vision.encoder import Encoder
from ostinato.vision.load import load_tower
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import tower_rungs

TABLE = ("224x224", "448x448", "896x896", "mixed", "1792x1792")
COMPILED = ("224x224", "448x448", "mixed")
ALL_CASES = CASES | {"1792x1792": ((1, 1792, 1792),)}
PLAIN = "plain"
HIDDEN = ("fa3", "cudnn", "cudnn_ragged")


def numerics_of(variant: str) -> Numerics:
    return "reference" if variant == "reference" else "fast"


def with_tower_of(setting: Setting, variant: str) -> Setting:
    """E4M3 weights for ``fp8``, rounded from the same ones."""
    if variant != "fp8":
        return setting
    with torch.inference_mode(False):
        return setting._replace(tower=load_tower(setting.peer, quantization="fp8").eval())


def setting_of(variant: str) -> AbstractContextManager[None]:
    return hiding(*HIDDEN) if variant == PLAIN else nullcontext()


class Ours:
    """One variant of our tower: recorded exactly for each case, and its direct call."""

    def __init__(self, setting: Setting, variant: str) -> None:
        self.setting, self.variant = setting, variant
        rungs = tower_rungs(setting.config)[:1]
        graph = GraphConfig(min_hits=NEVER, promote_hits=NEVER)  # bare replays take no lock
        self.runner = Runner.on(setting.device, graph)

        def make(config: GraphConfig) -> tuple[Encoder, RecordedTower]:
            tower = RecordedTower(
                setting.tower, self.runner, config, rungs, numerics=numerics_of(variant)
            )
            return Encoder(tower, NoPreprocessor()), tower  # type: ignore[arg-type]

        self.encoder, self.recorded = make(graph)
        self.direct, _ = make(GraphConfig(mode="off"))

    def record(self, grids: list[Grid]) -> float:
        """Seconds to record this batch exactly, kernels compiled and chosen among them."""
        begin = time.perf_counter()
        layout = self.recorded.layouts.exact(grids)
        self.recorded.record(self.recorded.exact_rung(layout), layout)
        synchronize(self.setting.device)
        return round(time.perf_counter() - begin, 2)

    def close(self) -> None:
        self.encoder.close()
        self.runner.close()


def measure(setting: Setting, options: argparse.Namespace, report: Report) -> None:
    cases = {n: [grid_of(setting.config, i) for i in ALL_CASES[n]] for n in options.cases}
    settings = {v: with_tower_of(setting, v) for v in options.variants.split(",")}
    for name, grids in cases.items():
        report.section(name, lambda n=name, g=grids: one_case(settings, options, n, g))
    if options.compile:
        report.section("compiled", lambda: compiled_apart(options))
    report.section("to_best_peer", lambda: to_best_peer(report.rows))
    # last: a profiler leaves later launches of a process slower
    report.section("kernels", lambda: kernels_of(settings, cases))


def kernels_of(settings: dict[str, Setting], cases: dict[str, list[Grid]]) -> dict[str, Any]:
    """By case and variant: number and time of the kernels of a direct call, which is recorded."""
    found: dict[str, Any] = {}
    for variant, setting in settings.items():
        with setting_of(variant):
            one = Ours(setting, variant)
            for name, grids in cases.items():
                x = patches_for(setting, grids)
                call = partial(one.direct.encode_patches, x, grids)
                row = kernels_ms(call, x.device)
                found.setdefault(name, {})[variant] = row
            one.close()
    return found


def one_case(
    settings: dict[str, Setting],
    options: argparse.Namespace,
    name: str,
    grids: list[Grid],
) -> dict[str, Any]:
    """All peers of one case in turns; then, in a turn of its own, what has backends hidden: it
    makes the others' recordings stale.
    """
    setting = next(iter(settings.values()))
    x = patches_for(setting, grids)
    grid = torch.tensor(grids, device=setting.device)
    row: dict[str, Any] = {"patches": num_patches(grids), "variants": {}}
    configs = peer.configs_of(setting.peer)
    calls: dict[str, Callable[[], Any]] = {
        f"transformers_{attention}_ms": peer_call(setting, configs, attention, x, grid)
        for attention in ("sdpa", "flash")
    }
    open_ones = {v: own for v, own in settings.items() if v != PLAIN}
    row |= timed(open_ones, options, grids, x, calls, row["variants"])
    if PLAIN in settings:
        with hiding(*HIDDEN):
            row |= timed({PLAIN: settings[PLAIN]}, options, grids, x, {}, row["variants"])
    best = min(row["transformers_sdpa_ms"], row["transformers_flash_ms"])
    print(name, {k: v for k, v in row.items() if k != "variants"}, flush=True)
    for variant, found in row["variants"].items():
        found["to_transformers"] = round(row[f"{variant}_ms"] / best, 4)
        print("  ", variant, found, flush=True)
    return row


def timed(
    settings: dict[str, Setting],
    options: argparse.Namespace,
    grids: list[Grid],
    x: torch.Tensor,
    peers: dict[str, Callable[[], Any]],
    found: dict[str, Any],
) -> dict[str, float]:
    """Times of our variants and of ``peers``; how the variants were served goes to ``found``."""
    ours = {variant: Ours(own, variant) for variant, own in settings.items()}
    calls = {}
    for variant, one in ours.items():
        seconds = one.record(grids)
        calls[f"{variant}_ms"] = partial(one.encoder.encode_patches, x, grids)
        found[variant] = {"recording_seconds": seconds}
    times = medians_ms(calls | peers, x.device, options.repeats)
    for variant, one in ours.items():
        found[variant] |= served(one.encoder, x, grids)
        found[variant] |= bare_replay_ms(one.recorded, grids, x.device)
        one.close()
    return times


def peer_call(
    setting: Setting, configs: list[Any], attention: str, x: torch.Tensor, grid: torch.Tensor
) -> Callable[[], Any]:
    def call() -> Any:
        peer.use_attention(configs, attention)
        return peer.run(setting.peer, x, grid)

    return call


def compiled_apart(options: argparse.Namespace) -> dict[str, Any]:
    """``torch.compile`` of transformers' tower at three sizes, in a process of its own."""
    cases = [name for name in options.cases if name in COMPILED]
    command = [sys.executable, "-m", "bench.peers.compiled_vision", "--family", options.family]
    command += ["--modes", options.compile, "--cases", ",".join(cases)]
    command += ["--depth", str(options.depth)] if options.depth else []
    command += ["--dry"] if options.dry else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def to_best_peer(rows: dict[str, Any]) -> dict[str, Any]:
    """By case and variant: ours over the best of transformers and its compiled forms."""
    found: dict[str, Any] = {}
    for name in (name for name in rows if name in ALL_CASES):
        row = rows[name]
        compiled = rows.get("compiled", {}).get(name, {}).values()
        theirs = [one["ms"] for one in compiled if "ms" in one]
        best = min([row["transformers_sdpa_ms"], row["transformers_flash_ms"], *theirs])
        found[name] = {v: round(row[f"{v}_ms"] / best, 4) for v in row["variants"]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=("qwen3_vl", "qwen2_5_vl"), default="qwen3_vl")
    parser.add_argument("--depth", type=int, default=None)
    parser.add_argument("--variants", default="fast,plain")
    parser.add_argument("--cases", default=",".join(TABLE))
    parser.add_argument("--compile", default="")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    question = f"fused-{options.family}" + ("-dry" if options.dry else "")
    report = Report(question, options.out)
    with torch.inference_mode():
        setting = report.section(
            "tower",
            lambda: set_up(options.family, options.depth, is_dry=options.dry),
            is_kept=False,
        )
        if setting is not None:
            report.rows["depth"] = setting.config.depth
            measure(setting, options, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
