"""transformers' tower under ``torch.compile``, in a process of its own.

``reduce-overhead`` records graphs in pools of its own and looks at what else is alive in the
process, so nothing of ours runs beside it. Prints one JSON line: by case and mode, milliseconds
and the seconds until it answered at its final speed, or the error.

    python -m bench.peers.compiled_vision [--family qwen3_vl|qwen2_5_vl] [--depth N]
                                          [--modes default,…] [--cases 224x224,…] [--dry]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from typing import Any

import torch

from bench.peers import transformers_vision as peer
from bench.towers import CASES, Setting, grid_of, medians_ms, patches_for, set_up, synchronize


def measure(
    setting: Setting, name: str, mode: str, repeats: int, *, is_dry: bool
) -> dict[str, Any]:
    """One case in one mode, flash attention."""
    grids = [grid_of(setting.config, item) for item in CASES[name]]
    x = patches_for(setting, grids)
    peer.use_attention(peer.configs_of(setting.peer), "flash")
    begin = time.perf_counter()
    grid = torch.tensor(grids, device=setting.device)
    call = peer.compiled(setting.peer, grid, mode, backend="eager" if is_dry else "inductor")
    for _ in range(3):
        call(x)
    synchronize(setting.device)
    seconds = time.perf_counter() - begin
    times = medians_ms({"ms": partial(call, x)}, setting.device, repeats)
    return {"ms": times["ms"], "first_seconds": round(seconds, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=("qwen3_vl", "qwen2_5_vl"), default="qwen3_vl")
    parser.add_argument("--depth", type=int, default=None)
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--cases", default="224x224,448x448,mixed")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU, not compiled")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with torch.inference_mode():
        setting = set_up(options.family, options.depth, is_dry=options.dry)
        for name in options.cases.split(","):
            found[name] = {}
            for mode in options.modes.split(","):
                torch._dynamo.reset()
                try:
                    row = measure(setting, name, mode, options.repeats, is_dry=options.dry)
                except Exception as error:  # what the peer cannot do is an answer too
                    row = {"error": repr(error)[:300]}
                found[name][mode] = row
                print(name, mode, row, file=sys.stderr, flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
