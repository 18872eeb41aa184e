"""``ostinato bench policy``: flags in, a table or JSON out; ``ostinato.bench.policy`` measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli import flags


def policy(
    variant: Annotated[
        str, typer.Option(help="base, gd or sd (fewer passes), each also as …-fp8r.")
    ] = "sd",
    model: Annotated[
        str | None, typer.Option(help="tiny-flux3-action instead of the published sizes.")
    ] = None,
    device: flags.Device = "auto",
    repeats: Annotated[int | None, typer.Option(help="Whole calls of each peer.")] = None,
    seconds: Annotated[float, typer.Option(help="Longest loop of whole calls.")] = 120.0,
    compile_mode: Annotated[
        str, typer.Option(help="torch.compile's mode for sd and base; none leaves it out.")
    ] = "reduce-overhead",
    kernels: Annotated[
        bool, typer.Option(help="Take the GPU time of kernels first, in another process.")
    ] = True,
    write: Annotated[
        Path | None, typer.Option(help="Write a package of random weights here instead.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Keep what was found so far here.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """Measure a FLUX 3 Action policy of random weights: unfused, direct, compiled and recorded.

    Exit status 1 where a part could not be measured or a recorded answer differs.
    """
    import torch

    from ostinato.bench.policy import Settings, measure
    from ostinato.cli.config import resolve_settings
    from ostinato.cli.device import resolve_device

    settings = resolve_settings(device=device)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    where = torch.device(chosen, 0) if chosen == "cuda" else torch.device(chosen)
    if write is not None:
        from ostinato.bench.policy_package import write_variant

        write_variant(write, variant, model=model, draw_on=where)
        typer.echo(f"{variant} of random weights: {write}")
        return
    asked = Settings(
        variant,
        where,
        repeats=repeats,
        seconds=seconds,
        compile_mode=None if compile_mode == "none" else compile_mode,
        model=model,
        with_kernels=kernels,
    )

    def keep(rows: dict[str, Any]) -> None:
        if out is not None:
            out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    rows = measure(asked, keep)
    typer.echo(json.dumps(rows) if as_json else as_text(rows))
    is_exact = all(row["equal_bytes"] for row in rows.get("exactness", [{"equal_bytes": False}]))
    raise typer.Exit(0 if is_exact and "errors" not in rows else 1)


def as_text(rows: dict[str, Any]) -> str:
    """Whole calls, one peer a line; what recording took; what failed."""
    lines = [f"{rows['variant']} on {rows['device']}"]
    for name, row in rows.get("total", {}).items():
        if isinstance(row, dict) and "median_ms" in row:
            lines.append(
                f"{name:>10}  median {row['median_ms']:9.2f} ms  p95 {row['p95_ms']:9.2f}  "
                f"p99 {row['p99_ms']:9.2f}  of {row['num_calls']}"
            )
    if "ready" in rows:
        ready = rows["ready"]
        lines.append(f"recorded and gated in {ready['seconds']} s; holds {ready['held_mib']} MiB")
    if "exactness" in rows:
        equal = sum(row["equal_bytes"] for row in rows["exactness"])
        lines.append(f"{equal} of {len(rows['exactness'])} recorded answers have equal bytes")
    lines += [f"{name} FAILED: {e['error']}" for name, e in rows.get("errors", {}).items()]
    return "\n".join(lines)
