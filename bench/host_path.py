"""Where does the host's time go: in an operator, a layer, a replayed encoder call, a recording?

Qwen3-VL-8B's width, 4 layers, one image of 224x224 (196 patches). Host microseconds until a call
returned, the device idle at its start, medians. A recording's milliseconds are split by what the
recorder calls; ``capture`` includes ``instantiate``, ``gate`` and ``times`` wait for the device.

    python -m bench.host_path [--depth 4] [--calls 200] [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from bench.report import Report
from bench.towers import Setting, make_encoder, patches_for, set_up, synchronize
from ostinato import GraphConfig
from ostinato.kernels.linear import linear, linear_add_layer_norm
from ostinato.kernels.norm import layer_norm
from ostinato.kernels.rope import rope
from ostinato.kernels.segment_attention import segment_attention
from ostinato.recording import cuda, cuda_census, ledger, recorder
from ostinato.recording.cache import Generation
from ostinato.recording.examination import Examination
from ostinato.recording.runner import Runner
from ostinato.vision.encoder import Encoder
from ostinato.vision.host_layout import HostLayout
from ostinato.vision.prepared import SERVED_BY_RUNG, Prepared
from ostinato.vision.recorded import RecordedTower
from ostinato.vision.rungs import tower_rungs

GRID = (1, 14, 14)
NUM_RUNGS = 8
Call = Callable[[], Any]


def host_us(calls: dict[str, Call], device: torch.device, repeats: int) -> dict[str, float]:
    """Median host microseconds until each call has returned; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 10):
        for name, call in calls.items():
            synchronize(device)
            begin = time.perf_counter()
            result = call()
            elapsed = time.perf_counter() - begin
            del result
            if turn >= 10:
                times[name].append(elapsed)
    return {name: round(statistics.median(t) * 1e6, 1) for name, t in times.items()}


def operators(setting: Setting, repeats: int) -> dict[str, float]:
    """Direct calls of the operators of a block, torch's own product beside them."""
    config, device, dtype = setting.config, setting.device, setting.dtype
    num_rows, width, heads = 196, config.width, config.num_heads
    make = partial(torch.randn, device=device, dtype=dtype)
    x, inner = make(num_rows, width), make(num_rows, config.mlp_width)
    qkv_weight, qkv_bias = make(3 * width, width), make(3 * width)
    up, up_bias = make(config.mlp_width, width), make(config.mlp_width)
    down, vector = make(width, config.mlp_width), make(width)
    angles = torch.randn(num_rows, config.head_dim // 2, device=device)
    q, k, v = (make(num_rows, heads, config.head_dim) for _ in range(3))
    offsets = torch.tensor([0, num_rows], dtype=torch.int32, device=device)
    qkv = F.linear(x, qkv_weight, qkv_bias)
    return host_us(
        {
            "F.linear": lambda: F.linear(x, qkv_weight, qkv_bias),
            "empty": lambda: x.new_empty(x.shape),
            "layer_norm": lambda: layer_norm(x, vector, vector, 1e-6),
            "linear": lambda: linear(x, qkv_weight, qkv_bias),
            "linear + gelu": lambda: linear(x, up, up_bias, activation="gelu_tanh"),
            "linear + add + norm": lambda: linear_add_layer_norm(
                inner, down, vector, x, vector, vector, 1e-6
            ),
            "rope": lambda: rope(qkv, angles, angles, heads=heads, head_dim=config.head_dim),
            "segment_attention": lambda: segment_attention(q, k, v, offsets, num_rows, scale=0.1),
        },
        device,
        repeats,
    )


def towers(setting: Setting, recorded: RecordedTower, repeats: int) -> dict[str, float]:
    """A direct call of the whole tower, per layer, and transformers' own tower beside it."""
    depth = len(setting.tower.blocks)
    layout = recorded.layouts.exact([GRID])
    tensors = HostLayout(layout.arrays, pin=False).upload(setting.device)
    patches = patches_for(setting, [GRID])
    grids = torch.tensor([GRID], device=setting.device)
    size = layout.size
    ours = partial(
        setting.tower, patches, tensors, max_segment=size.max_segment, max_window=size.max_window
    )
    peer = partial(setting.peer, patches, grids)
    calls = {"direct_us": ours, "transformers_us": peer}
    found = host_us(calls, setting.device, max(repeats // 4, 5))
    return {**found, "direct_us_a_layer": round(found["direct_us"] / depth, 1)}


def replayed(
    setting: Setting, encoder: Encoder, recorded: RecordedTower, repeats: int
) -> dict[str, float]:
    """One replayed call of the encoder, whole, and each of its steps alone."""
    patches = patches_for(setting, [GRID])
    layout = recorded.layouts.exact([GRID])
    recorded.record(recorded.exact_rung(layout), layout)
    route = encoder.encode_patches(patches, [GRID])[0].route
    call: Prepared = encoder._plan((GRID,)).calls[0]
    assert call.rung is not None, f"not served by a recording: {route}"
    entry = recorded.entry_of(call.rung)
    assert entry is not None
    served, inputs = recorded._served, [patches, *call.host_inputs]
    with torch.inference_mode():
        steps: dict[str, Call] = {
            "encode_patches": lambda: encoder.encode_patches(patches, [GRID]),
            "plan": lambda: encoder._plan((GRID,)),
            "run": lambda: recorded.run(patches, call),
            "call_entry": lambda: served.call_entry(
                entry, inputs, call.used, SERVED_BY_RUNG, lambda: None
            ),
            "ledger": served.ledger.check,
            "load": lambda: entry.inputs.load(inputs, entry.rung),
            "replay": entry.recorded.replay,
            "results": lambda: entry.results.cut(
                inputs, entry.inputs.tensors, entry._lengths(call.used)
            ),
            "note": lambda: recorded.note(call.layout),
        }
        found = host_us(steps, setting.device, repeats)
    return {**found, "num_nodes": entry.recorded.num_nodes}


class Stopwatch:
    """Adds up the milliseconds of functions while they are watched."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self.num_calls: dict[str, int] = {}

    def wrap(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                elapsed = (time.perf_counter() - begin) * 1e3
                self.ms[name] = self.ms.get(name, 0.0) + elapsed
                self.num_calls[name] = self.num_calls.get(name, 0) + 1

        return timed

    @contextmanager
    def watching(self, places: dict[str, tuple[Any, str]]) -> Iterator[None]:
        patches = [
            mock.patch.object(owner, attribute, self.wrap(name, getattr(owner, attribute)))
            for name, (owner, attribute) in places.items()
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


STEPS = {
    "whole": (recorder.Recorder, "_make"),
    "probe": (recorder.Recorder, "_probe"),
    "survey": (ledger.Ledger, "learn"),
    "gate": (Examination, "verdict"),
    "times": (recorder.Recorder, "_times"),
    "memory": (Generation, "measure"),
}
CUDA_STEPS = {
    "count": (cuda.CudaPool, "_count"),
    "capture": (cuda._Capture, "run"),
    "instantiate": (torch.cuda.CUDAGraph, "instantiate"),
    "census": (cuda_census, "of_graph"),
}


def recordings(setting: Setting) -> dict[str, Any]:
    """Milliseconds of a rung's recording by step: the first (with what is verified and chosen at
    first sight), and the mean of further ones, verified before by a first pass.
    """
    ladder = tower_rungs(setting.config, top=4096)[:: 56 // NUM_RUNGS][:NUM_RUNGS]
    places = STEPS | (CUDA_STEPS if setting.device.type == "cuda" else {})
    rows: dict[str, Any] = {}
    for title in ("first pass", "second pass"):
        runner = Runner.on(setting.device)
        encoder, _ = make_encoder(setting, runner, ladder, GraphConfig())
        watch, num_calls = Stopwatch(), 0
        kind: Any = type(setting.tower)
        places["tower"] = (kind, "forward")
        with watch.watching(places):
            begin = time.perf_counter()
            encoder.warm_up()
            elapsed = time.perf_counter() - begin
        num_calls = watch.num_calls.get("tower", 0)
        num_recorded = encoder.stats().num_recorded
        assert num_recorded == len(ladder), encoder.stats().refusals
        rows[title] = {
            "num_rungs": num_recorded,
            "total_ms": round(elapsed * 1e3, 1),
            "tower_calls_a_rung": round(num_calls / num_recorded, 2),
            "ms_a_rung": {name: round(ms / num_recorded, 2) for name, ms in watch.ms.items()},
        }
        encoder.close()
        runner.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="a tiny tower on the CPU")
    options = parser.parse_args()
    setting = set_up("qwen3_vl", options.depth, is_dry=options.dry)
    runner = Runner.on(setting.device)
    encoder, recorded = make_encoder(
        setting, runner, tower_rungs(setting.config, top=256), GraphConfig()
    )
    report = Report("host-path", options.out)
    with torch.inference_mode():
        report.section("operators, us", partial(operators, setting, options.calls))
        report.section("tower, us", partial(towers, setting, recorded, options.calls))
    report.section("recordings, ms", partial(recordings, setting))
    report.section(
        "replayed call, us", partial(replayed, setting, encoder, recorded, options.calls)
    )
    encoder.close()
    runner.close()
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
