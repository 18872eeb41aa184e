"""``ostinato chat``: a conversation in the terminal, without a server."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli import flags
from ostinato.errors import ConfigError


def chat(
    model: flags.Model,
    image: Annotated[
        list[Path] | None, typer.Option(help="Shown with the first turn; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 512,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; the model's own unless said.", min=0.0)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For answers that can be repeated.")] = None,
    device: flags.Device = "auto",
    dtype: flags.DType = "auto",
    disable_cuda_graph: flags.NoGraph = False,
) -> None:
    """Talk to a model that sees: a line is a turn, /image PATH shows something, /help says more."""
    from ostinato.cli.chat import run_chat
    from ostinato.cli.chat_wiring import load_chat_service
    from ostinato.cli.config import EncoderSettings, resolve_settings
    from ostinato.cli.device import resolve_device

    for path in image or ():
        if not path.is_file():
            raise ConfigError(f"--image is {path}; expected a file that exists")
    settings = resolve_settings(
        device=device,
        is_recording_on=not disable_cuda_graph,
        encoder=EncoderSettings(flags.dtype_of(dtype)),
    )
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    service = load_chat_service(model, settings, device=chosen)
    sampling = replace(service.defaults, max_tokens=max_tokens, seed=seed)
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    try:
        run_chat(service, sys.stdin, _write, images=image or (), sampling=sampling)
    finally:
        service.close()


def _write(text: str) -> None:
    """As it comes."""
    typer.echo(text, nl=False)
    sys.stdout.flush()
