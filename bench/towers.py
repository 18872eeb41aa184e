"""What the benchmarks of vision towers share: our encoder on transformers' weights, inputs, timing.

Not a benchmark itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ostinato import GraphConfig
from ostinato.recording.runner import Runner
from ostinato.vision.contract import Grid, Rung, VisionConfig
from ostinato.vision.encoder import Encoder
from ostinato.vision.layout import Layouts
from ostinato.vision.load import load_tower
from ostinato.vision.padding import fits
from ostinato.vision.recorded import RecordedTower

NEVER = 1 << 30

CASES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "224x224": ((1, 224, 224),),
    "448x448": ((1, 448, 448),),
    "896x896": ((1, 896, 896),),
    "4 x 448x448": ((1, 448, 448),) * 4,
    "mixed": ((1, 224, 224), (1, 448, 448), (1, 896, 896), (1, 320, 544)),
    "8 frames of 448x448": ((8, 448, 448),),
}
"""Frames (after temporal merging), rows and columns in pixels."""


class Setting(NamedTuple):
    """One tower in two spellings, and where it runs."""

    peer: nn.Module
    tower: Any
    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> VisionConfig:
        config: VisionConfig = self.tower.config
        return config


class NoPreprocessor:
    """The benchmarks bring patches."""

    def close(self) -> None:
        return None


def set_up(family: str, depth: int | None, *, is_dry: bool) -> Setting:
    """Published sizes on the GPU; tiny ones on the CPU for a trial run of the benchmark itself."""
    from bench.peers.transformers_vision import make_tower

    device = torch.device("cpu") if is_dry else torch.device("cuda", 0)
    with torch.inference_mode(False):  # weights as a user's are: with version counters
        peer = make_tower(family, depth=2 if is_dry else depth, device=device, is_tiny=is_dry)
        return Setting(peer, load_tower(peer).eval(), device, torch.bfloat16)


def make_encoder(
    setting: Setting,
    runner: Runner,
    rungs: Sequence[Rung],
    graph: GraphConfig,
    recorded_class: type[RecordedTower] = RecordedTower,
) -> tuple[Encoder, RecordedTower]:
    """An encoder with a list of rungs of its own; nothing is recorded yet."""
    recorded = recorded_class(setting.tower, runner, graph, rungs)
    return Encoder(recorded, NoPreprocessor()), recorded  # type: ignore[arg-type]


def grid_of(config: VisionConfig, item: tuple[int, int, int]) -> Grid:
    """Pixels to patches, rounded to whole tokens as the published processors do."""
    step = config.patch_size * config.merge_size
    frames, height, width = item
    return (
        frames,
        max(1, round(height / step)) * config.merge_size,
        max(1, round(width / step)) * config.merge_size,
    )


def num_patches(grids: Sequence[Grid]) -> int:
    return sum(t * h * w for t, h, w in grids)


def patches_for(setting: Setting, grids: Sequence[Grid], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device=setting.device).manual_seed(seed)
    return torch.randn(
        num_patches(grids),
        setting.config.patch_width,
        generator=generator,
        device=setting.device,
        dtype=setting.dtype,
    )


def needed_rungs(
    config: VisionConfig, ladder: Sequence[Rung], batches: Sequence[Sequence[Grid]]
) -> list[Rung]:
    """The rungs of the ladder that serve these batches each in one call, largest first."""
    layouts = Layouts(config)
    ascending = sorted(ladder, key=lambda r: (r.num_patches, r.num_segments))
    chosen = set()
    for grids in batches:
        layout = layouts.exact(grids)
        rung = next((r for r in ascending if fits(layout, r)), None)
        if rung is not None:
            chosen.add(rung)
    return [rung for rung in ladder if rung in chosen]


def synchronize(device: torch.device) -> None:
    """Wait for the current device, past torch's own Python, which would be timed too."""
    if device.type == "cuda":
        torch._C._cuda_synchronize()


PER_TURN = 5


def medians_ms(
    calls: dict[str, Callable[[], Any]], device: torch.device, repeats: int, warm: int = 1
) -> dict[str, float]:
    """Median wall milliseconds from call to result on an idle device, at least ``repeats`` times.

    The calls take turns of five. What the first of a turn takes, when the host's caches hold what
    another call left, is kept apart: ``<name, less its unit>_first_ms``.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    firsts: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-(-repeats // (PER_TURN - 1)) + warm):
        for name, call in calls.items():
            for place in range(PER_TURN):
                synchronize(device)
                begin = time.perf_counter()
                result = call()
                synchronize(device)
                elapsed = time.perf_counter() - begin
                del result
                if turn >= warm:
                    (times if place else firsts)[name].append(elapsed)
    found = {name: round(statistics.median(t) * 1e3, 4) for name, t in times.items()}
    for name, t in firsts.items():
        found[name.removesuffix("_ms") + "_first_ms"] = round(statistics.median(t) * 1e3, 4)
    return found


def kernels_ms(call: Callable[[], Any], device: torch.device, repeats: int = 1) -> dict[str, float]:
    """Sum of the GPU time of every kernel of one call, and how many there were; the mean of
    ``repeats`` calls, each waited for. ``torch.cuda._sleep`` does not count.
    """
    if device.type != "cuda":
        return {"kernels_ms": 0.0, "num_kernels": 0, "copies_ms": 0.0}
    from torch.profiler import ProfilerActivity, profile

    call()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            call()
            synchronize(device)
    events = [
        e
        for e in profiler.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and "spin_kernel" not in e.name
    ]
    copies = [e for e in events if e.name.startswith(("Memcpy", "Memset"))]
    total = sum(e.time_range.elapsed_us() for e in events)
    copied = sum(e.time_range.elapsed_us() for e in copies)
    return {
        "kernels_ms": round((total - copied) / 1e3 / repeats, 4),
        "num_kernels": (len(events) - len(copies)) // repeats,
        "copies_ms": round(copied / 1e3 / repeats, 4),
    }
