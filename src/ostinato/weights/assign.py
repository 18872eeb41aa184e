"""Gives a module its tensors, strictly: every parameter gets one, and none is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from ostinato.errors import WeightsError

_LISTED = 4
"""Names of missing or extra tensors that a message lists."""


def published_names(module: nn.Module, published_name: Callable[[str], str]) -> dict[str, str]:
    """Published name to parameter name, for every parameter of ``module``."""
    return {published_name(name): name for name, _ in module.named_parameters()}


def check_shapes(
    module: nn.Module,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    origin: str,
    prefix: str = "",
) -> None:
    """Raise ``WeightsError`` unless ``shapes`` has exactly ``names``, each of the right shape.

    ``names``: published name to parameter name; ``shapes``: published name to stored shape;
    ``prefix`` completes the names in messages to those in the files.
    """
    for what, left, right in (("missing", names, shapes), ("not expected", shapes, names)):
        odd = sorted(set(left) - set(right))
        if odd:
            listed = ", ".join(prefix + name for name in odd[:_LISTED])
            more = f" and {len(odd) - _LISTED} more" if len(odd) > _LISTED else ""
            raise WeightsError(f"{origin}: {what}: {listed}{more}")
    for name, ours in names.items():
        expected = tuple(module.get_parameter(ours).shape)
        if shapes[name] != expected:
            raise WeightsError(
                f"{origin}: {prefix}{name} has shape {shapes[name]}, expected {expected}"
            )


def assign(
    module: nn.Module, names: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Put each published tensor in its parameter's place; one that is a parameter is shared.

    All must be floating and of one dtype and device (``WeightsError``); buffers move there too.
    """
    first: Tensor | None = None
    for name, tensor in tensors:
        first = tensor if first is None else first
        if not tensor.is_floating_point() or tensor.dtype != first.dtype:
            raise WeightsError(
                f"{name} is {tensor.dtype}, the others are {first.dtype}; "
                "give a dtype to load all of them in it"
            )
        parent, _, leaf = names[name].rpartition(".")
        is_parameter = isinstance(tensor, nn.Parameter)
        parameter = tensor if is_parameter else nn.Parameter(tensor, requires_grad=False)
        setattr(module.get_submodule(parent), leaf, parameter)
    if first is not None:
        move_buffers(module, first.device)


def move_buffers(module: nn.Module, device: torch.device) -> None:
    """Move buffers only: a shared parameter must stay the object that it is."""
    for name, buffer in list(module.named_buffers()):
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, buffer.to(device))
