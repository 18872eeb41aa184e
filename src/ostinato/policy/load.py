"""``load_policy``: from a package to a policy that is recorded and ready."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ostinato.errors import ConfigError
from ostinato.weights.device import find_device

if TYPE_CHECKING:
    from ostinato.policy.flux3_action.policy import ActionPolicy
    from ostinato.recording.config import GraphConfig


def load_policy(
    model: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | None = None,
    variant: str = "base",
    revision: str | None = None,
    enable_cuda_graph: bool = True,
    graph: GraphConfig | None = None,
    caption_cache_max_tokens: int = 65536,
    offload_text_encoder: bool = False,
    num_caption_buckets: int = 2,
    warm_up: bool = True,
) -> ActionPolicy:
    """Load a robot policy and record what it will serve.

    ``model``: a package directory, a hub name, or ``tiny-flux3-action``. ``device``: ``auto`` is
    the GPU where there is one. ``dtype``: bfloat16 unless given (float32 for the tiny model on the
    CPU). ``variant``: the folder below ``variants/``; ``base`` is the root. ``enable_cuda_graph``:
    off makes every call direct, with the same answers; weights on several GPUs do so too.
    ``offload_text_encoder``: it stays on the host, and its layers visit the GPU one by one when a
    new instruction is encoded. ``num_caption_buckets``: how many lengths of instructions, in steps
    of 80 tokens, are recorded before this returns; longer ones are recorded after their first
    request. ``warm_up``: record now, else after the first requests. Raises ``WeightsError``,
    ``ConfigError`` or ``DeviceError``.
    """
    from ostinato.kernels.select import selector_of
    from ostinato.policy.flux3_action.load import load_model
    from ostinato.policy.flux3_action.policy import ActionPolicy
    from ostinato.recording.config import GraphConfig

    if num_caption_buckets < 1:
        raise ConfigError(f"num_caption_buckets is {num_caption_buckets}; expected at least 1")
    loaded = load_model(
        model,
        device=find_device(device),
        dtype=dtype,
        variant=variant,
        revision=revision,
        text_device=torch.device("cpu") if offload_text_encoder else None,
    )
    if graph is not None and graph.cache_dir is not None:
        selector_of(find_device(device)).keep_in(Path(graph.cache_dir).expanduser())
    policy = ActionPolicy(
        loaded,
        enable_cuda_graph=enable_cuda_graph,
        graph=graph or GraphConfig(),
        caption_cache_max_tokens=caption_cache_max_tokens,
        offload_text_encoder=offload_text_encoder,
        num_caption_buckets=num_caption_buckets,
    )
    if warm_up:
        policy.warm_up()
    return policy
