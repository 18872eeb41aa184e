"""Are the fused operators right on this GPU, and how close to its memory bandwidth are they?

    python bench/kernels_gpu_check.py [--only NAME] [--workers 8] [--skip-speed]

First every operator against its reference on adversarial inputs, in bf16 (every width), fp16 and
fp32 (the widest), 37 rows; this also compiles the kernels, in several processes. Then bf16 at
16,384 rows: device time per call behind a queued spin, buffers rotated over 512 MB, every byte
counted once, against the bandwidth of a copy measured the same way. Where less than 32 MB move, a
second share is printed: of the time that the copy and the launch of an empty kernel would take.
Products are apart, at the row counts where a variant is chosen. Ends with one JSON line.
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
PRODUCT_ROWS = (196, 784)
FEW_BYTES = 32_000_000
"""Below this a launch shows, and the share of the copy alone says little of the kernel."""
LAUNCHES = {"sample": 6}
"""Kernels of one call, where there are several: fewer calls fit behind the spin."""
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


def empty_launch() -> float:
    """Seconds of a kernel that does nothing, timed like the others."""
    return device_seconds_per_call([lambda: torch.cuda._sleep(0)])


def measure(workload: Workload, copy: float, launch: float) -> dict[str, Any]:
    """Times of kernel and reference, and the share of the copy bandwidth."""
    op, sets = workload.operator, rotated(workload)
    sets = sets[: max(1, len(sets) // LAUNCHES.get(op.name, 1))]
    fused = device_seconds_per_call([lambda a=a: op.kernel(*a) for a in sets])
    eager = device_seconds_per_call([lambda a=a: op.reference(*a) for a in sets])
    num_bytes = workload.num_bytes()
    rate = num_bytes / fused
    row = {
        "operator": op.name,
        "shape": workload.label,
        "fused_us": round(fused * 1e6, 1),
        "eager_us": round(eager * 1e6, 1),
        "GB_per_s": round(rate / 1e9),
        "percent_of_copy": round(100 * rate / copy, 1),
    }
    if num_bytes < FEW_BYTES:
        row["percent_of_copy_and_launch"] = round(100 * (num_bytes / copy + launch) / fused, 1)
    return row


def products(only: str | None) -> list[dict[str, Any]]:
    """Every variant worth timing of every product, at the row counts that choose among them."""
    from ostinato.kernels.linear import choice, variants

    rows = []
    for num_rows in PRODUCT_ROWS:
        seen = {}
        for workload in workloads(rows=num_rows, dtype=torch.bfloat16, device="cuda"):
            name = workload.operator.name
            if name.startswith("linear") and (only is None or only in name):
                seen.setdefault((name, workload.label.rpartition(" ")[0]), workload)
        for (name, shape), workload in seen.items():
            x, weight = workload.args[:2]
            names = variants.candidates(
                *(num_rows, *weight.shape, x.dtype),
                num_processors=torch.cuda.get_device_properties(0).multi_processor_count,
                has_epilogue="gelu_tanh" in shape,
            )
            resolved = choice.resolve(name, (*workload.args[:-1], "auto"))
            row = measure_product(workload, names)
            row["chosen"] = variants.LIBRARY if resolved is None else resolved[-1]
            rows.append({"operator": name, "shape": shape, "rows": num_rows, **row})
            show_product(rows[-1])
    return rows


def measure_product(workload: Workload, names: list[str]) -> dict[str, Any]:
    """TFLOP/s of torch's own chain and of each variant."""
    x, weight = workload.args[:2]
    work = 2 * x.shape[0] * weight.numel() / 1e12
    operator, sets = workload.operator, rotated(workload)
    torch_seconds = device_seconds_per_call([lambda a=a: operator.reference(*a) for a in sets])
    rates = {}
    for name in names:
        calls = [lambda a=a, name=name: operator.kernel(*a[:-1], name) for a in sets]
        rates[name] = round(work / device_seconds_per_call(calls))
    return {"torch": round(work / torch_seconds), "TFLOP_per_s": rates}


def show_product(row: dict[str, Any]) -> None:
    """torch's own chain, then the variants, fastest first; the chosen one is marked."""
    rates = sorted(row["TFLOP_per_s"].items(), key=lambda pair: -pair[1])
    text = "  ".join(f"{name}{'*' if name == row['chosen'] else ''} {rate}" for name, rate in rates)
    what = f"{row['operator']:24}{row['shape']:20}{row['rows']:5d} rows"
    print(f"{what}   torch {row['torch']}   {text}")


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
    speeds, of_products, copy, launch = [], [], 0.0, 0.0
    if not options.skip_speed:
        copy, launch = copy_bandwidth(), empty_launch()
        print(f"copy: {copy / 1e9:.0f} GB/s, an empty kernel: {launch * 1e6:.1f} us\n")
        print(
            f"{'operator':28}{'shape':26}{'fused us':>10}{'eager us':>10}{'GB/s':>8}{'of copy':>9}"
            f"{'of copy + launch':>18}"
        )
        for workload in cases("bf16", options.only, SPEED_ROWS):
            if not workload.operator.name.startswith("linear"):
                speeds.append(measure_or_say(workload, copy, launch))
        print("\nproducts, TFLOP/s; * is chosen")
        of_products = products(options.only)
    print(
        json.dumps(
            {
                "question": "kernels on this GPU: right, and how near to its bandwidth",
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "checked": len(checks),
                "wrong": wrong,
                "copy_GB_per_s": round(copy / 1e9),
                "empty_launch_us": round(launch * 1e6, 2),
                "speeds": speeds,
                "products": of_products,
                "seconds": round(time.perf_counter() - begin),
            }
        )
    )
    return 1 if wrong else 0


def measure_or_say(workload: Workload, copy: float, launch: float) -> dict[str, Any]:
    """One printed row; an operator that raises is a row too."""
    try:
        row = measure(workload, copy, launch)
    except Exception as error:
        row = {
            "operator": workload.operator.name,
            "shape": workload.label,
            "error": str(error)[:200],
        }
        print(f"{row['operator']:28}{row['shape']:26}{row['error']}")
        return row
    share = row.get("percent_of_copy_and_launch")
    print(
        f"{row['operator']:28}{row['shape']:26}{row['fused_us']:10.1f}{row['eager_us']:10.1f}"
        f"{row['GB_per_s']:8d}{row['percent_of_copy']:8.1f}%"
        + (f"{share:17.1f}%" if share is not None else "")
    )
    return row


if __name__ == "__main__":
    sys.exit(main())
