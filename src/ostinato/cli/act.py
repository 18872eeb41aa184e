"""``ostinato act``: a policy without a server, on one observation or on recorded requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli import flags
from ostinato.errors import ConfigError

Model = Annotated[
    str | None,
    typer.Option("--model", "--model-path", help="With --replay: unless it is the recorded one."),
]
Variant = Annotated[str, typer.Option(help="The package's folder below variants/.")]
Offload = Annotated[
    bool, typer.Option("--offload-text-encoder", help="Keep the text encoder on the host.")
]


def act(
    model: Model = None,
    observation: Annotated[
        Path | None, typer.Option(help="A .json (with image files), .npz or .safetensors.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Directory of serve --record: run its requests again and compare."),
    ] = None,
    as_json: flags.AsJson = False,
    device: flags.Device = "auto",
    dtype: flags.DType = "auto",
    variant: Variant = "base",
    offload_text_encoder: Offload = False,
    disable_cuda_graph: flags.NoGraph = False,
) -> None:
    """Ask a robot policy for actions: for one observation, or for recorded requests again.

    An observation's answer is computed again directly. Exit status 1 where answers that should be
    the same differ.
    """
    if (observation is None) == (replay is None):
        raise ConfigError("act wants one of --observation FILE and --replay DIR")
    if observation is not None:
        if model is None:
            raise ConfigError("act --observation wants --model")
        _once(
            observation,
            model,
            as_json=as_json,
            device=device,
            dtype=dtype,
            variant=variant,
            offload_text_encoder=offload_text_encoder,
            is_direct=disable_cuda_graph,
        )
    if replay is not None:
        if dtype != "auto" or variant != "base" or offload_text_encoder:
            raise ConfigError("--dtype, --variant and --offload-text-encoder go with --observation")
        _again(replay, model, as_json=as_json, device=device, is_direct=disable_cuda_graph)


def _once(
    observation: Path,
    model: str,
    *,
    as_json: bool,
    device: str,
    dtype: str,
    variant: str,
    offload_text_encoder: bool,
    is_direct: bool,
) -> None:
    from ostinato.cli.act_once import answer_to, as_text, load
    from ostinato.cli.observation_file import read_observation

    given = read_observation(observation)
    policy = load(
        model,
        device=device,
        dtype=dtype,
        variant=variant,
        offload_text_encoder=offload_text_encoder,
        is_direct=is_direct,
    )
    try:
        answer = answer_to(policy, given)
    finally:
        policy.close()
    typer.echo(json.dumps(answer, indent=2) if as_json else as_text(answer))
    raise typer.Exit(0 if answer["verdict"] in ("bit-exact", None) else 1)


def _again(
    directory: Path, model: str | None, *, as_json: bool, device: str, is_direct: bool
) -> None:
    from ostinato.cli.act_replay import recorded_model, replay, summary_text
    from ostinato.cli.config import resolve_settings
    from ostinato.cli.device import resolve_device
    from ostinato.cli.policy_wiring import load_policy_service
    from ostinato.cli.progress import progress_bar

    settings = resolve_settings(device=device, is_recording_on=not is_direct)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    service = load_policy_service(model or recorded_model(directory), settings, device=chosen)
    try:
        service.warm_up()
        with progress_bar("replaying", is_quiet=as_json) as progress:
            report = replay(directory, service, progress=progress)
    finally:
        service.close()
    summary = report.summary()
    typer.echo(json.dumps(summary) if as_json else summary_text(summary))
    raise typer.Exit(0 if report.is_good else 1)
