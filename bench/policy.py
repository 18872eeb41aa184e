"""How fast is a robot policy at the published sizes, and what do its recordings take?

Random weights, each variant in a process of its own (with its peers, in turns): unfused direct,
direct, ``torch.compile`` (sd and base) and recorded. See ``ostinato.bench.policy`` for what each
figure is. The file is written after each variant; one that is cut short leaves what it has.

    python -m bench.policy [--variants sd,sd-fp8r,base] [--repeats N] [--seconds S] [--no-compile]
                           [--no-kernels] [--only-memory] [--limit SECONDS] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.report import Report
from ostinato.bench.policy import Settings, measure

DEFAULT = "sd,sd-fp8r,base,base/offload"
OFFLOAD = "/offload"
"""After a variant: the text encoder on the host, memory only."""
FIGURES = ("total", "ready", "peak memory", "ratios", "errors")


def measure_apart(variant: str, options: argparse.Namespace, within_s: float) -> dict[str, Any]:
    """One variant in a process of its own, ended when its time is over."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "found.json"
        command = [sys.executable, "-m", "bench.policy", *options.given]
        command += ["--variants", variant, "--keep-at", str(kept)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=within_s, check=False
            )
            ending = "" if not done.returncode else f"{done.returncode}: {done.stderr[-2000:]}"
        except subprocess.TimeoutExpired:
            ending = f"ended after {within_s:.0f} s"
        rows: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if ending:
        rows["ending"] = ending
    print(variant, json.dumps({n: rows.get(n) for n in FIGURES}), ending, flush=True)
    return rows


def measure_here(options: argparse.Namespace) -> int:
    """The process of one variant."""
    settings = Settings(
        options.variants.removesuffix(OFFLOAD),
        torch.device("cpu") if options.dry else torch.device("cuda", 0),
        repeats=options.repeats,
        seconds=options.seconds,
        compile_mode=None if options.no_compile else options.compile_mode,
        model="tiny-flux3-action" if options.dry else None,
        offloads_text=options.variants.endswith(OFFLOAD),
        with_kernels=not options.no_kernels,
        only_memory=options.only_memory or options.variants.endswith(OFFLOAD),
    )
    kept = Path(options.keep_at)
    measure(settings, lambda rows: kept.write_text(json.dumps(rows)) and None)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", default=DEFAULT, help="joined by commas")
    parser.add_argument("--repeats", type=int, default=None, help="default: 300 sd, 60 base")
    parser.add_argument("--seconds", type=float, default=120.0, help="longest loop of a variant")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all variants")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--compile-mode", default="reduce-overhead")
    parser.add_argument("--out", default=None)
    parser.add_argument("--no-kernels", action="store_true", help="no GPU time of kernels")
    parser.add_argument("--only-memory", action="store_true", help="measure no times")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--keep-at", default=None, help="of the process of one variant")
    options = parser.parse_args()
    if options.keep_at is not None:
        return measure_here(options)
    options.given = sys.argv[1:]
    report = Report("policy" + ("-dry" if options.dry else ""), options.out)
    begin = time.perf_counter()
    found = []
    for variant in options.variants.split(","):
        left_s = max(1.0, options.limit - (time.perf_counter() - begin))
        found.append(
            report.section(variant, lambda v=variant, s=left_s: measure_apart(v, options, s))
        )
    is_whole = all(rows and not {"ending", "errors"} & set(rows) for rows in found)
    return report.finish() or int(not is_whole)


if __name__ == "__main__":
    sys.exit(main())
