"""How far is our tower from transformers in fp32, beside transformers' own bf16 paths?

Relative distance of embeddings and of each DeepStack level to transformers in fp32 (the same
weights, rounded to bf16; TF32 off). Ours must be within 1.1 x the larger of the distances of
transformers' ``sdpa`` and ``eager`` paths in bf16. Ours direct and through a padded recording.

    python -m bench.accuracy [--depth 8] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.peers import transformers_vision as peer
from bench.report import Report
from bench.towers import NEVER, grid_of, make_encoder, needed_rungs, patches_for, set_up
from ostinato import GraphConfig
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid
from ostinato.vision.encoder import Encoded
from ostinato.vision.rungs import tower_rungs

FACTOR = 1.1
INPUTS = {
    "448x448": ((1, 448, 448),),
    "mixed": ((1, 224, 224), (4, 224, 336), (1, 320, 544)),
}
"""Frames (after temporal merging), rows and columns in pixels."""


def distances(given: Sequence[Tensor], reference: Sequence[Tensor]) -> list[float]:
    """Relative, in float32: embeddings first, then each DeepStack level."""
    return [
        round(((a.float() - b).norm() / b.norm()).item(), 7)
        for a, b in zip(given, reference, strict=True)
    ]


def joined(encoded: Sequence[Encoded]) -> list[Tensor]:
    levels = zip(*(e.deepstack for e in encoded), strict=True)
    return [torch.cat([e.embeddings for e in encoded]), *(torch.cat(level) for level in levels)]


def measure(family: str, depth: int, *, is_dry: bool) -> list[dict[str, Any]]:
    setting = set_up(family, depth, is_dry=is_dry)
    exact_peer = copy.deepcopy(setting.peer)
    for parameter in exact_peer.parameters():
        parameter.data = parameter.data.float()
    peer.use_attention(peer.configs_of(exact_peer), "eager")
    batches = {
        name: [grid_of(setting.config, item) for item in items] for name, items in INPUTS.items()
    }
    rungs = needed_rungs(setting.config, tower_rungs(setting.config), list(batches.values()))
    runner = Runner.on(setting.device)
    recorded, _ = make_encoder(setting, runner, rungs, GraphConfig(promote_hits=NEVER))
    direct, _ = make_encoder(setting, runner, rungs, GraphConfig(mode="off"))
    recorded.warm_up()
    rows = []
    for name, grids in batches.items():
        rows.append({"family": family, "input": name, "patches": 0})
        rows[-1] |= one_input(setting, exact_peer, grids, direct, recorded)
        print(rows[-1], flush=True)
    recorded.close()
    runner.close()
    return rows


def one_input(
    setting: Any, exact_peer: Any, grids: list[Grid], direct: Any, recorded: Any
) -> dict[str, Any]:
    patches = patches_for(setting, grids)
    grid = torch.tensor(grids, device=setting.device)
    reference = peer.run(exact_peer, patches.float(), grid)
    found: dict[str, list[float]] = {}
    for attention in ("sdpa", "eager", "flash"):
        peer.use_attention(peer.configs_of(setting.peer), attention)
        found[attention] = distances(peer.run(setting.peer, patches, grid), reference)
    found["ours_direct"] = distances(joined(direct.encode_patches(patches, grids)), reference)
    served = recorded.encode_patches(patches, grids)
    found["ours_recorded"] = distances(joined(served), reference)
    allowed = [max(a, b) for a, b in zip(found["sdpa"], found["eager"], strict=True)]
    worst = max(
        ours / limit if limit else float(ours > 0)
        for way in ("ours_direct", "ours_recorded")
        for ours, limit in zip(found[way], allowed, strict=True)
    )
    return {
        "patches": patches.shape[0],
        "route": served[0].route.route,
        "distances": found,
        "worst_over_transformers": round(worst, 4),
        "is_within": worst <= FACTOR,
        "shifted_input": distances(
            peer.run(exact_peer, patches.float().roll(1, 0), grid), reference
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    report = Report("accuracy" + ("-dry" if options.dry else ""), options.out)
    with torch.inference_mode():
        for family in peer.FAMILIES:
            report.section(family, lambda f=family: measure(f, options.depth, is_dry=options.dry))
    found = [row for family in peer.FAMILIES for row in report.rows.get(family, [])]
    report.rows["is_within"] = len(found) == 6 and all(row["is_within"] for row in found)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
