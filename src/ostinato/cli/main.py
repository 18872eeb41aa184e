"""The ``ostinato`` command. Parses flags and prints; the work is done in the files beside it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ostinato.cli import bench
from ostinato.cli.act import act
from ostinato.cli.chat_command import chat
from ostinato.cli.encoder_commands import encode, ladder, verify
from ostinato.cli.flags import AsJson
from ostinato.cli.serve import CONTEXT, serve
from ostinato.cli.sglang_chat_flags import help_text
from ostinato.errors import OstinatoError
from ostinato.version import installed_version

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
        typer.echo(f"ostinato {installed_version()}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Records GPU work of multimodal models as CUDA graphs and replays it safely."""


app.command(context_settings=CONTEXT, epilog=help_text())(serve)
app.command()(encode)
app.command()(act)
app.command()(chat)
app.command()(verify)
app.command()(ladder)
app.add_typer(bench.app)


@app.command()
def doctor(
    target: Annotated[str | None, typer.Argument(help="package.module:callable")] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="package.module:callable that returns the example inputs."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A checkpoint's vision tower.")] = None,
    machine: Annotated[bool, typer.Option("--machine", help="Report on this machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say why a callable cannot be recorded, or what this machine can do.

    Without --inputs, example calls come from <callable>_example() or example_inputs() beside it.
    Ends with 1 where a callable cannot be recorded, or torch cannot use this machine's GPU.
    """
    from ostinato.cli import doctor as command
    from ostinato.cli.config import resolve_settings

    command.only_one(target, model, machine)
    report: Any
    if machine:
        report = command.examine_machine(resolve_settings().cuda_visible_devices)
    elif model is not None:
        report = command.examine_model(model)
    else:
        report = command.examine_callable(target or "", inputs)
    typer.echo(report.to_json() if as_json else str(report))
    is_bad = bool(report.error) if machine else not report.recordable
    raise typer.Exit(1 if is_bad else 0)


def main() -> None:
    """Run the command; our own errors are one line, not a traceback."""
    try:
        app()
    except OstinatoError as error:
        typer.echo(f"ostinato: {error}", err=True)
        sys.exit(2)
