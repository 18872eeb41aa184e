"""Are the fused operators right on this GPU, and how close to its memory bandwidth are they?

    python bench/kernels_gpu_check.py [--only NAME] [--workers 8] [--skip-speed]

First every operator against its reference on adversarial inputs, in bf16 (every width), fp16 and
fp32 (the widest), 37 rows; this also compiles the kernels, in several processes. Then
bf16 at 16,384 rows: device time per call behind a queued spin, buffers rotated over 512 MB, every
byte counted once, against the bandwidth of a copy measured the same way. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from ostinato.bench.timing import copy_bandwidth, device_seconds_per_call, rotated
from ostinato.kernels import gate
from ostinato.kernels.workloads import Workload, widest, workloads

CHECK_ROWS = 37
SPEED_ROWS = 16_384
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def cases(dtype: str, only: str | None, rows: int) -> list[Workload]:
    """The workloads of one dtype: all in bf16, the widest in the others."""
    every = list(workloads(rows=rows, dtype=DTYPES[dtype], device="cuda"))
    chosen = every if dtype == "bf16" else widest(every)
    return [w for w in chosen if only is None or only in w.operator.name]


def check_share(job: tuple[int, int, str | None]) -> list[tuple[str, str, str]]:
    """(operator, shape and dtype, reason or "") for every ``num_workers``-th workload."""
    share, num_workers, only = job
    torch.cuda.init()
    found = []
    for dtype in DTYPES:
        for workload in cases(dtype, only, CHECK_ROWS)[share::num_workers]:
            try:
                reason = gate.first_wrong_answer(workload.operator, workload.args)
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found.append((workload.operator.name, f"{workload.label} {dtype}", reason))
    return found


def check(only: str | None, num_workers: int) -> list[tuple[str, str, str]]:
    """Correctness of every case, spread over processes because compiling takes one core each."""
    jobs = [(share, num_workers, only) for share in range(num_workers)]
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        return sorted(row for rows in pool.map(check_share, jobs, chunksize=1) for row in rows)


def measure(workload: Workload, copy: float) -> dict[str, Any]:
    """Times of kernel and reference, and the share of the copy bandwidth."""
    op, sets = workload.operator, rotated(workload)
    fused = device_seconds_per_call([lambda a=a: op.kernel(*a) for a in sets])
    eager = device_seconds_per_call([lambda a=a: op.reference(*a) for a in sets])
    rate = workload.num_bytes() / fused
    return {
        "operator": op.name,
        "shape": workload.label,
        "fused_us": round(fused * 1e6, 1),
        "eager_us": round(eager * 1e6, 1),
        "GB_per_s": round(rate / 1e9),
        "percent_of_copy": round(100 * rate / copy, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="only operators whose name contains this")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--skip-speed", action="store_true")
    options = parser.parse_args()
    begin = time.perf_counter()
    checks = check(options.only, options.workers)
    wrong = [row for row in checks if row[2]]
    print(f"{len(checks)} cases checked in {time.perf_counter() - begin:.0f} s, {len(wrong)} wrong")
    for name, label, reason in wrong:
        print(f"WRONG {name} {label}: {reason}")
    speeds, copy = [], 0.0
    if not options.skip_speed:
        copy = copy_bandwidth()
        print(f"copy: {copy / 1e9:.0f} GB/s\n")
        print(
            f"{'operator':28}{'shape':26}{'fused us':>10}{'eager us':>10}{'GB/s':>8}{'of copy':>9}"
        )
        for workload in cases("bf16", options.only, SPEED_ROWS):
            row = measure_or_say(workload, copy)
            speeds.append(row)
    print(
        json.dumps(
            {
                "question": "kernels on this GPU: right, and how near to its bandwidth",
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "checked": len(checks),
                "wrong": wrong,
                "copy_GB_per_s": round(copy / 1e9),
                "speeds": speeds,
                "seconds": round(time.perf_counter() - begin),
            }
        )
    )
    return 1 if wrong else 0


def measure_or_say(workload: Workload, copy: float) -> dict[str, Any]:
    """One printed row; an operator that raises is a row too."""
    try:
        row = measure(workload, copy)
    except Exception as error:
        row = {
            "operator": workload.operator.name,
            "shape": workload.label,
            "error": str(error)[:200],
        }
        print(f"{row['operator']:28}{row['shape']:26}{row['error']}")
        return row
    print(
        f"{row['operator']:28}{row['shape']:26}{row['fused_us']:10.1f}{row['eager_us']:10.1f}"
        f"{row['GB_per_s']:8d}{row['percent_of_copy']:8.1f}%"
    )
    return row


if __name__ == "__main__":
    sys.exit(main())
