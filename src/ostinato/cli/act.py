"""``ostinato act``: one observation in, a chunk of actions out, and how it was served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli import flags
from ostinato.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ostinato.policy.flux3_action.policy import ActionPolicy

Variant = Annotated[str, typer.Option(help="The package's folder below variants/.")]
Offload = Annotated[
    bool, typer.Option("--offload-text-encoder", help="Keep the text encoder on the host.")
]


def act(
    model: flags.Model,
    observation: Annotated[
        Path | None, typer.Option(help="A .json (with image files), .npz or .safetensors.")
    ] = None,
    as_json: flags.AsJson = False,
    device: flags.Device = "auto",
    dtype: flags.DType = "auto",
    variant: Variant = "base",
    offload_text_encoder: Offload = False,
    disable_cuda_graph: flags.NoGraph = False,
) -> None:
    """Ask a robot policy for the actions that one observation calls for.

    The answer is then computed again directly; exit status 1 where a recorded one differs.
    """
    if observation is None:
        raise ConfigError("act wants --observation FILE")
    from ostinato.cli.observation_file import read_observation

    given = read_observation(observation)
    policy = load(
        model,
        device=device,
        dtype=dtype,
        variant=variant,
        offload_text_encoder=offload_text_encoder,
        is_direct=disable_cuda_graph,
    )
    try:
        answer = answer_to(policy, given)
    finally:
        policy.close()
    typer.echo(json.dumps(answer, indent=2) if as_json else as_text(answer))
    raise typer.Exit(0 if answer["verdict"] in ("bit-exact", None) else 1)


def load(
    model: str,
    *,
    device: str,
    dtype: str,
    variant: str,
    offload_text_encoder: bool,
    is_direct: bool,
) -> ActionPolicy:
    """The policy that the flags and the switches ask for, recorded and ready."""
    import torch

    import ostinato
    from ostinato.cli.config import DTYPES, resolve_settings
    from ostinato.cli.device import resolve_device

    settings = resolve_settings(device=device, is_recording_on=not is_direct)
    chosen = resolve_device(settings.device, cuda_visible_devices=settings.cuda_visible_devices)
    name = flags.dtype_of(dtype)
    if name is not None and name not in DTYPES:
        raise ConfigError(f"--dtype {dtype!r}; expected auto, {', '.join(DTYPES)}")
    return ostinato.load_policy(
        model,
        device=chosen,
        dtype=None if name is None else getattr(torch, name),
        variant=variant,
        enable_cuda_graph=settings.is_recording_on,
        offload_text_encoder=offload_text_encoder,
    )


def answer_to(policy: ActionPolicy, observation: dict[str, Any]) -> dict[str, Any]:
    """Plain values: actions in robot units, routes by region, milliseconds, and the verdict.

    Waits for the comparison with the direct call. A camera or a state that is missing is an
    ``InputError``.
    """
    try:
        result = policy.infer(observation)
    except KeyError as error:
        raise InputError(str(error.args[0])) from None
    policy.wait_idle()
    return {
        "actions": result["actions"].tolist(),
        "model_actions": result["model_actions"].tolist(),
        "recording": result["recording"],
        "verdict": policy.metadata["runtime"]["verdict"],
        "timings_ms": {n.removesuffix("_ms"): t for n, t in result["timings"].items()},
        "cache": result["cache"],
    }


def as_text(answer: dict[str, Any]) -> str:
    """One action a line, then routes, times and the verdict."""
    lines = [
        f"{i:3}: " + " ".join(f"{value:9.4f}" for value in action)
        for i, action in enumerate(answer["actions"])
    ]
    lines += [f"{region}: {how}" for region, how in answer["recording"].items()]
    lines.append(", ".join(f"{n} {t:.1f} ms" for n, t in answer["timings_ms"].items()))
    lines.append(f"recorded against direct: {answer['verdict'] or 'nothing is recorded'}")
    return "\n".join(lines)
