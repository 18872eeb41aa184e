"""One observation to a chunk of actions, and how it was served: the work of ``ostinato act``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.cli import flags
from ostinato.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ostinato.policy.flux3_action.policy import ActionPolicy


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
        graph=ostinato.GraphConfig(cache_dir=settings.cache_on(chosen)),
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
