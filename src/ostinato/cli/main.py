"""The ``ostinato`` command. Parses flags and prints; the work is done in the files beside it."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from ostinato.errors import OstinatoError

app = typer.Typer(
    name="ostinato",
    help="Records GPU work of multimodal models as CUDA graphs and replays it safely.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def print_version(is_wanted: bool) -> None:
    """Print the version and leave."""
    if is_wanted:
        typer.echo(f"ostinato {version('ostinato')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Records GPU work of multimodal models as CUDA graphs and replays it safely."""


@app.command()
def serve(
    model: Annotated[str, typer.Option("--model", "--model-path", help="Which model to serve.")],
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.")] = 30000,
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send.")] = None,
    once: Annotated[bool, typer.Option(help="Leave after the first photograph.")] = False,
) -> None:
    """Serve a model over HTTP."""
    from ostinato.cli.config import resolve_settings
    from ostinato.cli.device import resolve_device
    from ostinato.cli.run_server import run_server
    from ostinato.cli.wiring import load_service

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = resolve_settings(device=device, host=host, port=port, api_key=api_key)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    typer.echo(f"ostinato {version('ostinato')}: {model} on {chosen}")
    service = load_service(model, settings, device=chosen)
    raise typer.Exit(run_server(service, settings.server, is_once=once, echo=typer.echo))


@app.command()
def doctor(
    target: Annotated[str | None, typer.Argument(help="package.module:callable")] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="package.module:callable that returns the example inputs."),
    ] = None,
    machine: Annotated[bool, typer.Option("--machine", help="Report on this machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why a callable cannot be recorded, or what this machine can do."""
    from ostinato.cli.config import resolve_settings
    from ostinato.cli.doctor import examine, examine_machine

    if machine == (target is not None):
        raise typer.BadParameter("give either package.module:callable or --machine")
    if target is None:
        settings = resolve_settings()
        typer.echo(examine_machine(settings.cuda_visible_devices, as_json=as_json))
    else:
        typer.echo(examine(target, inputs, as_json=as_json))


def main() -> None:
    """Run the command; our own errors are one line, not a traceback."""
    try:
        app()
    except OstinatoError as error:
        typer.echo(f"ostinato: {error}", err=True)
        sys.exit(2)
