"""``ostinato act``: a policy without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli import flags


def act(
    replay: Annotated[
        Path, typer.Option(help="Directory of serve --record: run its requests again and compare.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "--model-path", help="Unless it is the recorded one.")
    ] = None,
    device: flags.Device = "auto",
    disable_cuda_graph: flags.NoGraph = False,
    as_json: flags.AsJson = False,
) -> None:
    """Run recorded requests again; exit status 1 unless all answers have the same bytes."""
    from ostinato.cli.act_replay import recorded_model
    from ostinato.cli.act_replay import replay as run
    from ostinato.cli.config import resolve_settings
    from ostinato.cli.device import resolve_device
    from ostinato.cli.policy_wiring import load_policy_service
    from ostinato.cli.progress import progress_bar

    name = model or recorded_model(replay)
    settings = resolve_settings(device=device, is_recording_on=not disable_cuda_graph)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    service = load_policy_service(name, settings, device=chosen)
    try:
        service.warm_up()
        with progress_bar("replaying", is_quiet=as_json) as progress:
            report = run(replay, service, progress=progress)
    finally:
        service.close()
    summary = report.summary()
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        for one in summary["different"]:
            why = one["error"] or f"differs by {one['difference']:.3g}"
            typer.echo(f"exchange {one['place']}: {why}")
        typer.echo(
            f"{summary['num_exchanges']} exchanges, {summary['num_bit_exact']} bit-exact; "
            f"largest difference {summary['largest_difference']:.3g}"
        )
        for label, key in (("recorded", "recorded_ms"), ("now", "now_ms")):
            times = "  ".join(f"{p.upper()} {ms:.1f} ms" for p, ms in summary[key].items())
            typer.echo(f"{label:<9} {times}")
    raise typer.Exit(0 if report.is_good else 1)
