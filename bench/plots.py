"""Draws the newest results as pictures for docs/: ``make bench-report`` calls this.

Nothing is computed that is not in the result files but ratios and running counts; the machine, the
versions and the commit of a result stand under its picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {
    "ours": "#1b6ca8",
    "direct": "#8a8a8a",
    "transformers": "#d1495b",
    "kernels": "#2e8b57",
    "powers_of_two": "#e0a030",
    "exact_only": "#7b4ea3",
    "plain": "#e0a030",
    "fp8": "#7b4ea3",
    "compiled": "#8a8a8a",
}
WAYS = {
    "ours": "ours",
    "exact_only": "one recording per exact size,\nmade when it is first seen",
    "powers_of_two": "powers of two only",
    "direct": "nothing recorded",
}
TOWERS = {"qwen3_vl": "Qwen3-VL-8B", "qwen2_5_vl": "Qwen2.5-VL-7B"}


def newest(results: Path, question: str) -> dict[str, Any] | None:
    """The latest result that answers ``question``; by date, then by name."""
    found = []
    for path in sorted(results.glob(f"*{question}*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.get("question") == question:
            found.append((content.get("date", ""), path.name, content))
    return max(found, key=lambda f: f[:2])[2] if found else None


def foot(result: dict[str, Any]) -> str:
    machine = result.get("gpu", result.get("cpu", "machine not stated"))
    commit = (result.get("commit") or "not stated")[:10]
    return f"{machine}, torch {result['torch']}, {result['date']}, commit {commit}"


def draw_encoder(results: Path, docs: Path, family: str) -> Path | None:
    """Wall time over patches: ours, direct, transformers, and the sum of our kernels' time."""
    result = newest(results, f"encoder-{family}")
    if result is None or not result["rows"].get("cases"):
        return None
    plt = _pyplot()
    rows = result["rows"]
    sweep = sorted(rows.get("sweep", []), key=lambda r: r["patches"])
    cases = sorted(rows["cases"], key=lambda r: r["patches"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2))
    if sweep:
        sizes = [r["patches"] for r in sweep]
        for name, label in (("ours", "ours"), ("direct", "ours, nothing recorded")):
            times = [r[f"{name}_ms"] for r in sweep]
            left.plot(sizes, times, ".-", color=COLOURS[name], label=label)
    times = [min(r["transformers_sdpa_ms"], r["transformers_flash_ms"]) for r in cases]
    sizes = [r["patches"] for r in cases]
    label = "transformers (the faster of sdpa and flash)"
    left.plot(sizes, times, "s", color=COLOURS["transformers"], label=label)
    known = [r for r in cases if r.get("kernels_ms")]
    if known:
        left.plot(
            [r["patches"] for r in known],
            [r["kernels_ms"] for r in known],
            "x",
            color=COLOURS["kernels"],
            label="sum of our kernels' GPU time",
        )
    left.set(xscale="log", yscale="log", xlabel="patches in the call", ylabel="milliseconds a call")
    left.set_title("One call, from patches to embeddings")
    places = range(len(cases))
    bars = (("ours", "ours_ms", -0.2), ("transformers", None, 0.2))
    for name, column, shift in bars:
        heights = [r[column] for r in cases] if column else times
        at = [place + shift for place in places]
        drawn = right.bar(at, heights, 0.38, color=COLOURS[name], label=name)
        right.bar_label(drawn, fmt="%.1f", fontsize=8)
    right.set_xticks(list(places), [f"{r['case']}\n{r['patches']}" for r in cases], fontsize=8)
    right.set(ylabel="milliseconds a call", xlabel="input in pixels, and its patches")
    right.set_title("The six inputs beside transformers")
    title = f"Vision tower of {TOWERS[family]}, {rows['depth']} layers: lower is better"
    return _save(figure, (left, right), title, result, docs / f"encoder-{family}.png")


def draw_stream(results: Path, docs: Path, depth: int = 8) -> Path | None:
    """Total, tail and memory of each way of recording; how latencies spread."""
    result = newest(results, f"stream-depth-{depth}")
    if result is None:
        return None
    rows = result["rows"]
    ways = [way for way in WAYS if way in rows]
    if not ways:
        return None
    plt = _pyplot()
    figure, axes = plt.subplots(1, 4, figsize=(17, 5.2), width_ratios=(2.2, 1, 1, 1))
    for way in ways:
        times = sorted(rows[way]["times_ms"])
        share = [100 * (i + 1) / len(times) for i in range(len(times))]
        axes[0].plot(times, share, color=COLOURS[way], label=WAYS[way])
    axes[0].set(xscale="log", xlabel="milliseconds", ylabel="% of requests answered within")
    axes[0].set_title("How long a request takes (further left is better)")
    columns = (
        ("total_s", "seconds", "All requests together"),
        ("P99_ms", "milliseconds", "The slowest of 100 requests"),
        ("MiB_device", "MiB", "Memory taken of the device"),
    )
    for axis, (column, unit, title) in zip(axes[1:], columns, strict=True):
        heights = [rows[way][column] for way in ways]
        drawn = axis.bar(range(len(ways)), heights, color=[COLOURS[way] for way in ways])
        axis.bar_label(drawn, fmt="%.4g", fontsize=8)
        axis.set_xticks([])
        axis.set(ylabel=unit, title=title)
    title = f"{rows['requests']} requests, {rows['distinct_sizes']} different inputs, one by one"
    title += f"; tower of {rows['depth']} layers"
    if "ours" in rows:
        title += f"; ours recorded before the first request, in {rows['ours']['warm_up_s']} s"
    return _save(figure, axes[:1], title, result, docs / "stream.png")


def draw_roofline(results: Path, docs: Path, family: str) -> Path | None:
    """The floor of one image over patches, our variants and the peers: how much is left to win."""
    result = newest(results, f"fused-{family}")
    if result is None:
        return None
    rows = result["rows"]
    cases = [(name, rows[name]) for name in rows if re.fullmatch(r"\d+x\d+", name)]
    if not cases:
        return None
    from dataclasses import replace

    from bench.roofline import BYTES_PER_S, FLOPS_PER_S, floor_ms, published_config

    plt = _pyplot()
    config = replace(published_config(family), depth=rows["depth"])
    cases.sort(key=lambda case: case[1]["patches"])
    sizes = [row["patches"] for _, row in cases]
    grid = [round(min(sizes) * (max(sizes) / min(sizes)) ** (i / 60)) for i in range(61)]
    figure, axis = plt.subplots(figsize=(8.5, 5.6))
    floor = f"floor: weights at {BYTES_PER_S / 1e12:.1f} TB/s, products at "
    floor += f"{FLOPS_PER_S / 1e12:.0f} TFLOP/s"
    axis.plot(grid, [floor_ms(config, n) for n in grid], "k--", label=floor)
    for mark, colour, label, times in _roofline_series(rows, cases):
        known = [(n, ms) for n, ms in zip(sizes, times, strict=True) if ms is not None]
        if known:
            axis.plot(*zip(*known, strict=True), mark, color=COLOURS[colour], label=label)
    axis.set(
        xscale="log", yscale="log", xlabel="patches of one image", ylabel="milliseconds a call"
    )
    title = f"Vision tower of {TOWERS[family]}, bf16 but for FP8, {rows['depth']} layers"
    return _save(figure, (axis,), title, result, docs / f"roofline-{family}.png")


Series = tuple[str, str, str, list[float | None]]


def _roofline_series(rows: dict[str, Any], cases: list[tuple[str, dict[str, Any]]]) -> list[Series]:
    """Mark, colour, label and the milliseconds of each case, where they were measured."""
    kernels = [rows.get("kernels", {}).get(name, {}).get("fast", {}) for name, _ in cases]
    compiled = [rows.get("compiled", {}).get(name, {}).values() for name, _ in cases]
    peers = [
        [v for k, v in row.items() if k in ("transformers_sdpa_ms", "transformers_flash_ms")]
        for _, row in cases
    ]
    return [
        ("o", "ours", "ours", [row.get("fast_ms") for _, row in cases]),
        ("x", "kernels", "sum of its kernels' GPU time", [k.get("kernels_ms") for k in kernels]),
        ("^", "plain", "ours without FA3 and cuDNN", [row.get("plain_ms") for _, row in cases]),
        ("v", "fp8", "ours with FP8 weights", [row.get("fp8_ms") for _, row in cases]),
        ("s", "transformers", "transformers", [min(p, default=None) for p in peers]),
        (
            *("D", "compiled", "transformers, torch.compile"),
            [min((one["ms"] for one in found if "ms" in one), default=None) for found in compiled],
        ),
    ]


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, with_legend: Any, title: str, result: dict[str, Any], path: Path) -> Path:
    for axis in with_legend:
        axis.legend(fontsize=9)
        axis.grid(alpha=0.25)
    figure.suptitle(title)
    figure.text(0.5, 0.005, foot(result), ha="center", fontsize=8, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    _pyplot().close(figure)
    return path


def draw_all(root: Path = ROOT) -> list[Path]:
    """Every picture that the results allow."""
    results, docs = root / "bench" / "results", root / "docs"
    drawn = [draw_encoder(results, docs, family) for family in TOWERS]
    drawn += [draw_roofline(results, docs, family) for family in TOWERS]
    drawn.append(draw_stream(results, docs))
    return [path for path in drawn if path is not None]
