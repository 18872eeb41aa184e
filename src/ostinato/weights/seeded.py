"""Random weights by stored name, E4M3 layers included: a ``Source`` without files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from ostinato.weights.random import random_tensors

E4M3_LARGEST = 448.0


class SeededTensors:
    """Each tensor depends on the seed and its name only.

    Names in ``quantised`` are E4M3 matrices ``….weight``; ``….weight_scale`` beside each of them is
    its scale per row. ``positive``: tensors that hold variances. ``draw_on``: what draws;
    the CPU gives the same values on every machine, a GPU gives billions of them in seconds.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        seed: int,
        quantised: Collection[str] = (),
        positive: Collection[str] = (),
        draw_on: torch.device | None = None,
    ) -> None:
        self._shapes = dict(shapes)
        self._seed = seed
        self._draw_on = draw_on or torch.device("cpu")
        self._quantised = frozenset(quantised)
        self._positive = frozenset(positive)

    def __getitem__(self, name: str, /) -> tuple[int, ...]:
        return self._shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def read(
        self, names: Iterable[str], *, device: torch.device, dtype: torch.dtype | None
    ) -> Iterator[tuple[str, Tensor]]:
        for name in names:
            yield name, self._make(name).to(device=device, dtype=dtype)

    def _make(self, name: str) -> Tensor:
        base = name.removesuffix("_scale")
        is_scale = base != name and base in self._quantised
        shape = self._shapes[base if is_scale else name]
        [(_, tensor)] = random_tensors(
            {base: shape}, seed=self._seed, device=self._draw_on, dtype=None, draw_on=self._draw_on
        )
        if name in self._positive:
            return tensor.abs() + 0.5
        if not is_scale and name not in self._quantised:
            return tensor
        scale = (tensor.abs().amax(1) / E4M3_LARGEST).clamp(min=1e-12)
        if is_scale:
            return scale
        return (tensor / scale[:, None]).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
