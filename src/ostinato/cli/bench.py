"""``ostinato bench``: what users measure on their own machine."""

from __future__ import annotations

import typer

from ostinato.cli.bench_kernels import kernels
from ostinato.cli.bench_policy import policy

app = typer.Typer(name="bench", help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure on this machine."""


app.command()(kernels)
app.command()(policy)
