"""``ostinato bench kernels``: flags in, text or JSON out; ``ostinato.bench.kernels`` measures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.flags import AsJson

if TYPE_CHECKING:
    from ostinato.bench.kernels import Report, Row


def kernels(
    only: Annotated[
        str | None, typer.Option(help="Only operators whose name contains this.")
    ] = None,
    is_compiled: Annotated[
        bool, typer.Option("--compile", help="Also what torch.compile makes of the eager chain.")
    ] = False,
    hide: Annotated[
        str, typer.Option(help="Attention backends to leave out, with commas: fa3,cudnn_ragged.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Each fused operator against its eager chain, and attention by backend.

    Rates are set against a copy and a large matrix product measured in the same run.
    """
    from ostinato.bench.kernels import measure_kernels

    def show(row: Row) -> None:
        if not as_json:
            typer.echo(line(row))

    names = [name.strip() for name in hide.split(",") if name.strip()]
    check_names(names)
    report = measure_kernels(only, is_compiled=is_compiled, hide=names, show=show)
    typer.echo(json.dumps(report.to_dict()) if as_json else summary(report))


def check_names(names: list[str]) -> None:
    """Refuse the name of no backend."""
    from ostinato.errors import ConfigError
    from ostinato.kernels.segment_attention import BACKENDS

    for name in names:
        if name not in BACKENDS or name == "auto":
            raise ConfigError(f"hide {name!r}: expected some of {', '.join(BACKENDS[1:])}")


def line(row: Row) -> str:
    """``operator shape: who us, ...; rate, share of the ceiling``."""
    times = [f"{name} {us:.1f} us" for name, us in row.microseconds.items()]
    failures = [f"{name} failed ({reason})" for name, reason in row.failed.items()]
    unit = "GB/s" if row.ceiling == "copy" else "TFLOP/s"
    rate = "" if row.rate is None else f"; {row.rate:.0f} {unit}, {row.percent:.0f} % of a "
    ceiling = row.ceiling if rate else ""
    if row.percent_of_like is not None:
        ceiling += f" ({row.percent_of_like:.0f} % of one of as many bytes)"
    return f"{row.operator:28}{row.shape:34}{', '.join(times + failures)}{rate}{ceiling}"


def summary(report: Report) -> str:
    """The ceilings, last."""
    copy, product = report.ceilings.copy_bytes_per_s, report.ceilings.product_flops_per_s
    return (
        f"\n{report.device}, torch {report.torch}: copy {copy / 1e9:.0f} GB/s, "
        f"product {product / 1e12:.0f} TFLOP/s"
    )
