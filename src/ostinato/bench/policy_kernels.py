"""The GPU time of a policy's kernels, taken in a process of its own.

A profiler leaves every later graph launch of its process slower, so nothing else is timed there.

    python -m ostinato.bench.policy_kernels VARIANT DEVICE [MODEL]
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from ostinato.bench.measure import kernels_of
from ostinato.bench.policy_package import load_variant
from ostinato.bench.policy_peers import Peers

LONGEST_S = 180.0
"""Loading, compiling kernels for the first time, and a few calls."""


def kernels_apart(variant: str, device: torch.device, model: str | None) -> dict[str, Any]:
    """What ``kernels`` finds, in a new process; raises ``RuntimeError`` with what it said."""
    command = [sys.executable, "-m", __name__, variant, str(device), *([model] if model else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def kernels(variant: str, device: torch.device, model: str | None) -> dict[str, Any]:
    """By peer and stage: milliseconds and number of kernels, the most expensive by name."""
    found: dict[str, Any] = {}
    with Peers(load_variant(variant, device, model)) as peers:
        for peer in (peers.direct, peers.unfused):
            stages = peer.stages(peers.short)
            found[peer.name] = {
                "observation": kernels_of(stages.observe, device),
                "denoise": kernels_of(stages.denoise, device),
            }
    return found


def main() -> int:
    variant, device, *model = sys.argv[1:]
    found = kernels(variant, torch.device(device), model[0] if model else None)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
