"""Parameters that several stored tensors make together, stacked along their first dimension.

A model names, for each parameter, the stored tensors it consists of; this file checks them all and
puts them in place. Where they come from (files, a seed) is a ``Source``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ostinato.errors import WeightsError
from ostinato.weights.assign import move_buffers

_LISTED = 4
SCALE = "weight_scale"
"""Parameters of this name stay in float32."""


class Part(NamedTuple):
    """One stored tensor."""

    name: str
    shape: tuple[int, ...]


Parts = Mapping[str, Sequence[Part]]
"""Parameter name to the stored tensors that it stacks."""


class Source(Protocol):
    """Stored names to shapes, and their tensors."""

    def __getitem__(self, name: str, /) -> tuple[int, ...]: ...

    def __iter__(self) -> Iterator[str]: ...

    def read(
        self, names: Iterable[str], *, device: torch.device, dtype: torch.dtype | None
    ) -> Iterator[tuple[str, Tensor]]: ...


def stored_shapes(parts: Parts) -> dict[str, tuple[int, ...]]:
    """Every stored tensor that ``parts`` needs, by name."""
    return {part.name: part.shape for stack in parts.values() for part in stack}


def check_parts(parts: Parts, source: Source, *, origin: str) -> None:
    """Raise ``WeightsError`` unless ``source`` has exactly the parts, each of its shape."""
    expected = stored_shapes(parts)
    names = set(source)
    for what, odd in (
        ("missing", sorted(set(expected) - names)),
        ("not expected", sorted(names - set(expected))),
    ):
        if odd:
            more = f" and {len(odd) - _LISTED} more" if len(odd) > _LISTED else ""
            raise WeightsError(f"{origin}: {what}: {', '.join(odd[:_LISTED])}{more}")
    for name, shape in expected.items():
        if tuple(source[name]) != shape:
            raise WeightsError(f"{origin}: {name} has shape {source[name]}, expected {shape}")


def load_parts(
    module: nn.Module,
    parts: Parts,
    source: Source,
    *,
    origin: str,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Give every parameter of ``module`` its tensor on ``device``; buffers move there too.

    E4M3 parameters and their scales keep their dtypes, which the stored ones must have; the others
    become ``dtype``. Raises ``WeightsError`` naming the tensor that does not fit.
    """
    check_parts(parts, source, origin=origin)
    for name, parameter in list(module.named_parameters()):
        stack = parts[name]
        is_fp8 = parameter.dtype == torch.float8_e4m3fn
        is_kept = is_fp8 or name.endswith(SCALE)
        tensors = dict(
            source.read(
                [part.name for part in stack], device=device, dtype=None if is_kept else dtype
            )
        )
        for part in stack:
            stored = tensors[part.name].dtype
            if is_kept and stored != parameter.dtype:
                raise WeightsError(f"{origin}: {part.name} is {stored}, expected {parameter.dtype}")
            if not is_kept and stored != dtype:
                raise WeightsError(f"{origin}: {part.name} cannot be {dtype}")
        parent, _, leaf = name.rpartition(".")
        pieces = [tensors[part.name] for part in stack]
        joined = pieces[0] if len(pieces) == 1 else _stack(pieces)
        owner = module.get_submodule(parent)
        setattr(owner, leaf, nn.Parameter(joined, requires_grad=False))
    move_buffers(module, device)


def _stack(pieces: Sequence[Tensor]) -> Tensor:
    if pieces[0].dtype == torch.float8_e4m3fn:  # no concatenation of E4M3 on every device
        return torch.cat([p.view(torch.uint8) for p in pieces]).view(torch.float8_e4m3fn)
    return torch.cat(list(pieces))
