"""How steady is a served policy? A robot's round trips to one policy on one GPU.

FLUX 3 Action with random weights of a variant's published sizes, behind the app that ``ostinato
serve`` builds, in a process of its own; ``clients/openpi`` with three raw 360x640 cameras in
another, each request after the last one's reply. Every answer's bytes are compared with those of
the same weights called directly in the server's process. ``overhead``: last byte received to reply
written, minus the policy's call, as the server's replies tell it.

    python -m bench.openpi_served [--variant sd] [--requests 300] [--warm 20] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.report import write
from ostinato.bench.policy import NAMES

ROOT = Path(__file__).resolve().parent.parent
STEADY = 1.1
"""P99 over P50 of the round trip, at most."""
SLOWEST = 5


@dataclass(frozen=True)
class Served:
    """A running server. ``hashes``: of the in-process answers, by ask."""

    port: int
    hashes: list[str]
    start_s: float
    lines: list[str]


def environment() -> dict[str, str]:
    """This one's, with our sources and the client's before everything else."""
    folders = [ROOT / "src", ROOT, ROOT / "clients" / "openpi" / "src"]
    paths = [str(folder) for folder in folders]
    given = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *([given] if given else [])])}


@contextmanager
def server(variant: str, *, is_dry: bool) -> Iterator[Served]:
    """Serves until the context is left."""
    command = [sys.executable, "-m", "bench.peers.served_policy", variant]
    began_s = time.perf_counter()
    with subprocess.Popen(
        [*command, *(["--dry"] if is_dry else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            hashes: list[str] = []
            lines: list[str] = []
            for line in process.stdout:
                if line.startswith("["):
                    hashes = json.loads(line)
                else:
                    lines.append(line.strip())
                if line.startswith("serving "):
                    break
            else:
                raise RuntimeError(f"the server ended before it served: {lines}")
            port = int(lines[-1].rpartition(":")[2])
            yield Served(port, hashes, time.perf_counter() - began_s, lines)
        finally:
            process.stdin.close()
            process.stdout.read()  # its last words, so that it can say them


def quantiles(values_ms: Sequence[float]) -> dict[str, float]:
    """Nearest ranks; P99 of 300 is the fourth largest."""
    ordered = sorted(values_ms)
    last = len(ordered) - 1
    return {
        "p50_ms": round(statistics.median(ordered), 3),
        "p90_ms": round(ordered[round(0.9 * last)], 3),
        "p99_ms": round(ordered[round(0.99 * last)], 3),
        "max_ms": round(ordered[last], 3),
    }


def figures(rounds: Sequence[dict[str, Any]], hashes: Sequence[str]) -> dict[str, Any]:
    """What the robot saw, as plain values."""
    trips = quantiles([row["round_trip_ms"] for row in rounds])
    timings = [row["server_timing"] for row in rounds]
    # a reply tells the total of the request before it
    overhead = [later["prev_total_ms"] - timing["infer_ms"] for timing, later in pairwise(timings)]
    stages = {
        name: quantiles([timing[f"{name}_ms"] for timing in timings])
        for name in ("decode", "prepare", "queue")
    }
    slowest = sorted(range(len(rounds)), key=lambda turn: -rounds[turn]["round_trip_ms"])[:SLOWEST]
    ratio = round(trips["p99_ms"] / trips["p50_ms"], 4)
    return {
        "round_trip": trips,
        "p99_to_p50": ratio,
        "is_steady": ratio <= STEADY,
        "policy": quantiles([timing["infer_ms"] for timing in timings]),
        "overhead": quantiles(overhead),
        "stages": stages,
        "routes": dict(
            Counter(f"{part}: {text}" for r in rounds for part, text in r["recording"].items())
        ),
        "num_equal_bytes": sum(row["sha256"] == hashes[row["ask"]] for row in rounds),
        "num_different_answers": len(set(hashes)),
        "slowest": [
            {
                "turn": turn,
                "round_trip_ms": round(rounds[turn]["round_trip_ms"], 3),
                "policy_ms": rounds[turn]["server_timing"]["infer_ms"],
            }
            for turn in slowest
        ],
        "round_trips_ms": [round(row["round_trip_ms"], 3) for row in rounds],
    }


def measure(variant: str, *, num_warm: int, num_timed: int, is_dry: bool) -> dict[str, Any]:
    """One server, one robot."""
    with server(variant, is_dry=is_dry) as served:
        command = [sys.executable, "-m", "bench.peers.robot_rounds"]
        done = subprocess.run(
            [*command, str(served.port), str(num_warm), str(num_timed)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=ROOT,
            env=environment(),
        )
    rounds = json.loads(done.stdout)
    facts = {"variant": variant, "is_tiny": is_dry, "num_requests": num_timed, "cores": _cores()}
    return {
        **facts,
        "start_s": round(served.start_s, 1),
        "said": served.lines,
        **figures(rounds, served.hashes),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="sd", choices=NAMES)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU; never unsteady")
    options = parser.parse_args(given)
    rows = measure(
        options.variant, num_warm=options.warm, num_timed=options.requests, is_dry=options.dry
    )
    write("openpi-served" + ("-dry" if options.dry else ""), rows, options.out)
    is_equal = rows["num_equal_bytes"] == options.requests
    return int(not (is_equal and (options.dry or rows["is_steady"])))


if __name__ == "__main__":
    sys.exit(main())
