"""``ostinato serve``: flags of a server, and SGLang's."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli import flags

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def serve(
    context: typer.Context,
    model: flags.Model,
    device: flags.Device = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.")] = 30000,
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send.")] = None,
    encoder_only: Annotated[
        bool, typer.Option("--encoder-only", help="Serve the vision encoder alone.")
    ] = False,
    served_model_name: Annotated[
        str | None, typer.Option(help="The name that clients use.")
    ] = None,
    dtype: flags.DType = "auto",
    numerics: flags.Numerics = "fast",
    disable_cuda_graph: flags.NoGraph = False,
    top_patches: flags.TopPatches = None,
    ladder_ratio: flags.LadderRatio = 1.25,
    budget_bytes: Annotated[
        int | None, typer.Option(help="All recordings together; an eighth of the memory.")
    ] = None,
    cache_bytes: Annotated[
        int, typer.Option(help="Keep results of equal content up to this size; 0 keeps none.")
    ] = 0,
    max_batch: Annotated[
        int, typer.Option(help="Most images and videos that share one turn of the device.")
    ] = 32,
    max_queued: Annotated[
        int,
        typer.Option("--max-queued", "--max-queued-requests", help="Most that may wait."),
    ] = 256,
    max_items: Annotated[int, typer.Option(help="Most images and videos of one request.")] = 64,
    max_body_bytes: Annotated[int, typer.Option(help="Largest body of a request.")] = 64 * 2**20,
    max_image_pixels: Annotated[
        int, typer.Option(help="Largest image or frame, in pixels, before it is resized.")
    ] = 89_478_485,
    workers: Annotated[int, typer.Option(help="Threads that decode and resize.")] = 2,
    allow_files: Annotated[
        Path | None, typer.Option(help="Directory from which file:// URLs are read.")
    ] = None,
    allow_hosts: Annotated[
        str, typer.Option(help="Host names, comma between, from which http(s):// URLs are fetched.")
    ] = "",
    skip_server_warmup: Annotated[
        bool, typer.Option("--skip-server-warmup", help="Do not greet the fresh server.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Leave after the greeting.")] = False,
) -> None:
    """Serve a vision encoder over HTTP (POST /pooling)."""
    from ostinato.cli.config import EncoderSettings, resolve_settings
    from ostinato.cli.device import resolve_device
    from ostinato.cli.progress import progress_bar
    from ostinato.cli.run_server import run_server
    from ostinato.cli.sglang_flags import check_unknown
    from ostinato.cli.wiring import load_service

    check_unknown(context.args, typer.echo)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    encoder = EncoderSettings(
        flags.dtype_of(dtype),
        numerics,
        top_patches,
        ladder_ratio,
        budget_bytes,
        workers,
        max_image_pixels,
    )
    settings = resolve_settings(
        device=device,
        host=host,
        port=port,
        api_key=api_key,
        is_recording_on=not disable_cuda_graph,
        served_name=served_model_name,
        cache_bytes=cache_bytes,
        allow_files=allow_files,
        allow_hosts=[name.strip() for name in allow_hosts.split(",") if name.strip()],
        encoder=encoder,
        max_batch=max_batch,
        max_queued=max_queued,
        max_items=max_items,
        max_body_bytes=max_body_bytes,
    )
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    part = "" if encoder_only else ", the vision encoder alone"
    typer.echo(f"ostinato {version('ostinato')}: {model}{part} on {chosen}")
    with progress_bar("recording") as progress:
        service = load_service(model, settings, device=chosen, progress=progress)
        status = run_server(
            service,
            settings.server,
            is_once=once,
            is_greeting=not skip_server_warmup,
            echo=typer.echo,
        )
    raise typer.Exit(status)
