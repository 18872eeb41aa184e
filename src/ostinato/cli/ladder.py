"""``ostinato ladder``: which sizes a real traffic wants recorded, the padding, and the cost."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ostinato.errors import ConfigError, InputError
from ostinato.vision.contract import VisionConfig
from ostinato.vision.preprocess import ImageConfig
from ostinato.vision.preprocess.resize import image_size
from ostinato.vision.rungs import SEGMENT_CAPACITIES, tower_rungs


@dataclass(frozen=True, slots=True)
class Plan:
    """A set of recorded sizes against a traffic. ``waste``: padded rows over all rows computed by
    recordings. ``num_recordings``: each size is recorded for few and for many segments.
    ``static_bytes``: inputs and outputs that the recordings keep, without the pools.
    """

    name: str
    rungs: tuple[int, ...]
    hits: tuple[int, ...]
    waste: float
    num_direct: int
    num_recordings: int
    static_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name:<10} {len(self.rungs):>3} sizes, {self.num_recordings:>3} recordings, "
            f"{self.static_bytes / 2**20:8.1f} MiB static, {self.waste:6.1%} padding, "
            f"{self.num_direct} direct"
        )


def read_sizes(path: Path, config: ImageConfig) -> Counter[int]:
    """Patches -> how often. One ``HxW`` (pixels, before resizing) or number of patches a line;
    empty lines and what follows ``#`` are skipped.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--sizes {str(path)!r}: {error}") from None
    counts: Counter[int] = Counter()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            counts[_patches(text, config, f"{path}:{number}")] += 1
    if not counts:
        raise ConfigError(f"--sizes {str(path)!r} holds no size")
    return counts


def _patches(text: str, config: ImageConfig, place: str) -> int:
    found = re.fullmatch(r"(\d+)(?:\s*[xX]\s*(\d+))?", text)
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"{place}: {text!r}; expected HxW in pixels or a number of patches")
    if found[2] is None:
        unit = config.merge_size**2
        if int(found[1]) % unit:
            raise ConfigError(f"{place}: {text} patches; expected a multiple of {unit}")
        return int(found[1])
    try:
        height, width = image_size(
            int(found[1]),
            int(found[2]),
            factor=config.factor,
            min_pixels=config.min_pixels,
            max_pixels=config.max_pixels,
        )
    except InputError as error:
        raise ConfigError(f"{place}: {text}: {error}") from None
    return (height // config.patch_size) * (width // config.patch_size)


def make_plan(
    name: str, rungs: tuple[int, ...], traffic: Mapping[int, int], tower: VisionConfig
) -> Plan:
    """What happens to ``traffic`` with these sizes recorded; ``rungs`` ascend."""
    hits, padded, rows, num_direct = [0] * len(rungs), 0, 0, 0
    for size, count in traffic.items():
        at = int(np.searchsorted(rungs, size))
        if at == len(rungs):
            num_direct += count
            continue
        hits[at] += count
        rows += rungs[at] * count
        padded += (rungs[at] - size) * count
    capacities = len(SEGMENT_CAPACITIES)
    outputs = tower.out_width * (1 + len(tower.deepstack_blocks)) / tower.merge_unit
    static = sum(int(rung * (tower.patch_width + outputs) * 2) for rung in rungs) * capacities
    return Plan(
        name,
        rungs,
        tuple(hits),
        padded / rows if rows else 0.0,
        num_direct,
        len(rungs) * capacities,
        static,
    )


def best_rungs(traffic: Mapping[int, int], num_rungs: int) -> tuple[int, ...]:
    """The ``num_rungs`` sizes that pad this traffic least; each is a size of the traffic itself."""
    sizes = np.array(sorted(traffic), dtype=np.int64)
    counts = np.array([traffic[int(size)] for size in sizes], dtype=np.int64)
    n = len(sizes)
    # rung j for the sizes i to j computes sizes[j] * (calls[j + 1] - calls[i]) rows
    calls = np.concatenate([[0], np.cumsum(counts)])
    cost = sizes * calls[1:]  # one rung for everything up to j
    choices = []
    for _ in range(min(num_rungs, n) - 1):
        totals = np.full(n, np.iinfo(np.int64).max)
        chosen = np.zeros(n, dtype=np.int64)
        for j in range(n):
            options = np.concatenate([[0], cost[:j]]) + sizes[j] * (calls[j + 1] - calls[: j + 1])
            chosen[j] = int(options.argmin())
            totals[j] = options[chosen[j]]
        choices.append(chosen)
        cost = totals
    rungs, j = [], n - 1
    for chosen in reversed(choices):
        rungs.append(int(sizes[j]))
        j = int(chosen[j]) - 1
        if j < 0:
            break
    if j >= 0:
        rungs.append(int(sizes[j]))
    return tuple(sorted(rungs))


def advise(
    traffic: Mapping[int, int], tower: VisionConfig, *, top: int, ratio: float
) -> list[Plan]:
    """The ladder as it starts; the best one of as many used sizes; every size by itself."""
    start = tuple(sorted({rung.num_patches for rung in tower_rungs(tower, top=top, ratio=ratio)}))
    ladder = make_plan("ladder", start, traffic, tower)
    recorded = {size: count for size, count in traffic.items() if size <= top}
    plans = [ladder]
    if recorded:
        num_used = sum(1 for count in ladder.hits if count)
        best = best_rungs(recorded, num_used)
        plans.append(make_plan("best", best, traffic, tower))
        plans.append(make_plan("exact", tuple(sorted(recorded)), traffic, tower))
    return plans


def as_json(traffic: Mapping[int, int], plans: list[Plan]) -> str:
    """Traffic and plans as one object."""
    facts = {"calls": sum(traffic.values()), "distinct_sizes": len(traffic)}
    return json.dumps({**facts, "plans": [asdict(plan) for plan in plans]}, indent=2)


def as_text(traffic: Mapping[int, int], plans: list[Plan]) -> str:
    """A line per plan, then the sizes that this traffic wants."""
    lines = [
        f"{sum(traffic.values())} calls, {len(traffic)} sizes of {min(traffic)} to "
        f"{max(traffic)} patches"
    ]
    lines += map(str, plans)
    for plan in plans[1:2]:
        lines.append(f"{'patches':>10} {'calls':>8}")
        lines += [f"{r:>10} {h:>8}" for r, h in zip(plan.rungs, plan.hits, strict=True)]
    return "\n".join(lines)
