"""Does the encoder server hold under load? Clients with mixed sizes and broken inputs, for a while.

The server and the clients of ``tests/load``, on a device: a tiny model, every answer compared with
``encode``, a process of its own that asks for the health all the while.

    python -m bench.pooling_load [--device cuda] [--clients 64] [--seconds 60] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from bench.report import write
from tests.load.clients import metrics, run_clients, server

HEALTH_P99_MS = 50.0


def measure(device: str, num_clients: int, seconds: float) -> dict[str, Any]:
    """What the clients saw and what the server counted."""
    with server(device=device) as port:
        outcome = run_clients(port, num_clients=num_clients, seconds=seconds)
        numbers = metrics(port)
    return {
        "device": device,
        "num_clients": num_clients,
        "seconds": seconds,
        "num_served": outcome.num_served,
        "num_refused_as_deserved": outcome.num_refused,
        "num_wrong": len(outcome.wrong),
        "wrong": Counter(outcome.wrong).most_common(5),
        "routes": sorted(outcome.routes),
        "health_p50_ms": round(outcome.percentile_ms(50), 2),
        "health_p99_ms": round(outcome.percentile_ms(99), 2),
        "items_per_replay": round(
            numbers["ostinato_batch_items_sum"] / numbers["ostinato_batch_items_count"], 2
        ),
        "still_queued": numbers["ostinato_queued"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    row = measure(options.device, options.clients, options.seconds)
    write("pooling-load", row, options.out)
    is_right = row["num_wrong"] == 0 and row["still_queued"] == 0
    return int(not (is_right and row["health_p99_ms"] <= HEALTH_P99_MS))


if __name__ == "__main__":
    sys.exit(main())
