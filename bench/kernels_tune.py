"""Which tile is fastest for each memory-bound operator on this GPU?

    python bench/kernels_tune.py [--only NAME] [--workers 16]

Every candidate of ``kernels/tiles.py`` is first compared with the reference on adversarial inputs
of 37 rows, in several processes, which also compiles it. Then bf16 at 16,384 rows, timed as
``kernels_gpu_check.py`` does: device time behind a queued spin, buffers rotated over 512 MB. Prints
one table (``*`` fastest, ``=`` what is used now) and one JSON line; ``best`` is what to write into
``tiles.BEST`` where it is not what is used.
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
from ostinato.kernels.tiles import Tile, candidates, tile, trying
from ostinato.kernels.workloads import Workload, workloads

CHECK_ROWS = 37
SPEED_ROWS = 16_384
WIDEST_NORM = 1152
"""Wider norms are beyond 85 % of the copy already."""
LAUNCHES = {"sample": 6}
Job = tuple[int, int, "str | None"]
Verdicts = dict[tuple[str, str, Tile], str]


def size(workload: Workload) -> tuple[int, int]:
    """(width, heads) by which ``tiles`` knows the workload."""
    name, args = workload.operator.name, workload.args
    if name in ("rope", "norm_rope"):
        return args[-2], args[-4]
    width = args[0].shape[1:].numel()
    return (width // 2 if name.endswith("swiglu") else width), 1


def cases(rows: int, only: str | None) -> list[tuple[Workload, list[Tile]]]:
    """The workloads to tune with their candidates; what is used now is among them."""
    found = []
    for workload in workloads(rows=rows, dtype=torch.bfloat16, device="cuda"):
        name = workload.operator.name
        width, heads = size(workload)
        is_wide_norm = name.endswith(("layer_norm", "rms_norm")) and width > WIDEST_NORM
        is_other = name.startswith(("linear", "paged_attention", "neighbourhood", "gate", "patch"))
        if is_other or is_wide_norm or (only is not None and only not in name):
            continue
        found.append((workload, candidates(name, width, heads)))
    return found


def check_share(job: Job) -> Verdicts:
    """(operator, shape, tile) -> reason or "", of every ``num_workers``-th pair."""
    share, num_workers, only = job
    pairs = [(w, t) for w, tiles in cases(CHECK_ROWS, only) for t in tiles]
    found = {}
    for workload, candidate in pairs[share::num_workers]:
        try:
            with trying(candidate):
                reason = gate.first_wrong_answer(workload.operator, workload.args)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        found[workload.operator.name, label(workload, CHECK_ROWS), candidate] = reason
    return found


def label(workload: Workload, rows: int) -> str:
    """The shape without the row count, which some labels start with."""
    return workload.label.removeprefix(f"{rows} x ")


def check(only: str | None, num_workers: int) -> Verdicts:
    jobs = [(share, num_workers, only) for share in range(num_workers)]
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        shares = pool.map(check_share, jobs, chunksize=1)
    return {key: reason for share in shares for key, reason in share.items()}


def measure(workload: Workload, tiles: list[Tile], verdicts: Verdicts, copy: float) -> list[Any]:
    """One row per candidate, in microseconds and percent of the copy bandwidth."""
    operator = workload.operator
    sets = rotated(workload)
    sets = sets[: max(1, len(sets) // LAUNCHES.get(operator.name, 1))]
    used = tile_in_use(workload)
    rows = []
    for candidate in tiles:
        shape = label(workload, SPEED_ROWS)
        reason = verdicts[operator.name, shape, candidate]
        row: dict[str, Any] = {"operator": operator.name, "shape": shape, "tile": candidate}
        row |= {"width": size(workload)[0], "is_used": candidate == used, "wrong": reason}
        if not reason:
            with trying(candidate):
                seconds = device_seconds_per_call([lambda a=a: operator.kernel(*a) for a in sets])
            row["us"] = round(seconds * 1e6, 2)
            row["percent_of_copy"] = round(100 * workload.num_bytes() / seconds / copy, 1)
        rows.append(row)
    fastest = min((row["us"] for row in rows if "us" in row), default=None)
    for row in rows:
        row["is_fastest"] = row.get("us") == fastest is not None
    return rows


def tile_in_use(workload: Workload) -> Tile:
    """The tile that the operator takes now."""
    name, (width, heads) = workload.operator.name, size(workload)
    if not name.startswith("fp8_"):
        return tile(name, width, heads)
    from ostinato.kernels.fp8.tiles import row_tiles
    from ostinato.kernels.tiles import measured

    return measured(name, width) or Tile(1, candidates(name, width)[0].columns,
                                         row_tiles(width).num_warps)  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        marks = ("*" if row["is_fastest"] else " ") + ("=" if row["is_used"] else " ")
        what = row["wrong"] or f"{row['us']:9.2f}{row['percent_of_copy']:8.1f}%"
        tile_text = "x".join(map(str, row["tile"]))
        print(f"{row['operator']:28}{row['shape']:26}{tile_text:>14} {marks}{what}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="only operators whose name contains this")
    parser.add_argument("--workers", type=int, default=16)
    options = parser.parse_args()
    begin = time.perf_counter()
    verdicts = check(options.only, options.workers)
    wrong = [key for key, reason in verdicts.items() if reason]
    seconds = time.perf_counter() - begin
    print(f"{len(verdicts)} tiles checked in {seconds:.0f} s, {len(wrong)} wrong")
    copy = copy_bandwidth()
    print(f"copy: {copy / 1e9:.0f} GB/s; rows x columns x warps, us, share of the copy\n")
    rows = []
    for workload, tiles in cases(SPEED_ROWS, options.only):
        measured_rows = measure(workload, tiles, verdicts, copy)
        show(measured_rows)
        rows += measured_rows
    best = {
        f"{row['operator']} {row['shape']}": [row["operator"], row["width"], row["tile"]]
        for row in rows
        if row["is_fastest"] and not row["is_used"]
    }
    result = {
        "question": "which tile is fastest for each memory-bound operator",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_GB_per_s": round(copy / 1e9),
        "best": best,
        "rows": rows,
        "seconds": round(time.perf_counter() - begin),
    }
    print(json.dumps(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
