"""Tensors of a transformers module that somebody has already loaded: shared, not copied.

Where dtype and device fit, the very parameter objects are shared, so that the owner's in-place
updates, casts and moves show here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.errors import WeightsError


def find_tower(module: nn.Module) -> nn.Module:
    """``module`` itself if it embeds patches, else its ``.visual`` or ``.model.visual``.

    Raises ``WeightsError`` naming the class if there is none.
    """
    inner = getattr(module, "model", None)
    for candidate in (module, getattr(module, "visual", None), getattr(inner, "visual", None)):
        if isinstance(candidate, nn.Module) and hasattr(candidate, "patch_embed"):
            return candidate
    raise WeightsError(
        f"{type(module).__name__} is no vision tower and has none as .visual or .model.visual"
    )


def module_config(module: nn.Module) -> dict[str, Any]:
    """A module's configuration as a dictionary; ``WeightsError`` if it has none."""
    config = getattr(module, "config", None)
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None:
        raise WeightsError(f"{type(module).__name__} has no transformers configuration")
    values: dict[str, Any] = to_dict()
    return values


def module_shapes(tower: nn.Module) -> Mapping[str, tuple[int, ...]]:
    """Names to shapes of everything that the tower would save."""
    return {name: tuple(tensor.shape) for name, tensor in tower.state_dict().items()}


def module_tensors(
    tower: nn.Module, *, device: torch.device, dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """Parameters by name: the tower's own objects where they fit, else converted copies."""
    for name, parameter in tower.named_parameters():
        fits = parameter.device == device and dtype in (None, parameter.dtype)
        yield name, parameter if fits else parameter.detach().to(device=device, dtype=dtype)


class ModuleTensors:
    """The tensors of a module whose names begin with one of ``prefixes``: a ``Source`` (see
    ``weights.stacked``).
    """

    def __init__(self, module: nn.Module, prefixes: tuple[str, ...]) -> None:
        found = module.state_dict()
        self._tensors = {name: found[name] for name in found if name.startswith(prefixes)}

    def __getitem__(self, name: str, /) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def read(
        self, names: Iterable[str], *, device: torch.device, dtype: torch.dtype | None
    ) -> Iterator[tuple[str, Tensor]]:
        """Shared where device and dtype fit."""
        for name in names:
            yield name, self._tensors[name].detach().to(device=device, dtype=dtype)
