"""From the names of a callable's parameters to the numbers of its inputs, call by call.

Inputs are numbered as tensors in flattened order, so an optional argument, a None or a list before
a named parameter moves it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ostinato.errors import ConfigError
from ostinato.recording import tree
from ostinato.recording.ladder import Axis, Grows

GrowsByName = Mapping[str, Mapping[int, Grows | Axis]]
"""Parameter name -> dimension -> how it grows."""

Numbers = tuple[tuple[str, int], ...]
"""Name and input number of each named parameter that a call gives a tensor for."""


class Parameters:
    """The parameters of ``fn`` that are declared to grow or to be written."""

    def __init__(
        self, fn: Callable[..., Any], name: str, grows: GrowsByName, writes: Sequence[str]
    ) -> None:
        self._name = name
        self.grows = {p: _growth(name, p, dims) for p, dims in _mapping(name, grows).items()}
        self.writes = tuple(writes)
        self._declared = {*self.grows, *self.writes}
        called = fn.forward if isinstance(fn, torch.nn.Module) else fn
        self._signature = inspect.signature(called) if self._declared else None
        known = list(self._signature.parameters) if self._signature else []
        for parameter in (*self.grows, *self.writes):
            if parameter not in known:
                raise ConfigError(
                    f"{name} has no parameter {parameter!r}; expected one of {', '.join(known)}"
                )

    @property
    def are_declared(self) -> bool:
        return self._signature is not None

    def bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Numbers]:
        """One spelling for a call, and the numbers of its inputs."""
        if self._signature is None:
            return args, dict(kwargs), ()
        bound = self._signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs, self._numbers(bound.arguments)

    def _numbers(self, arguments: Mapping[str, Any]) -> Numbers:
        numbers: list[tuple[str, int]] = []
        num_tensors = 0
        for name, value in arguments.items():
            if name in self._declared and value is not None:
                if not isinstance(value, torch.Tensor):
                    raise ConfigError(
                        f"{self._name}: parameter {name!r} is a {type(value).__qualname__}; "
                        "expected a tensor or None, since it is declared to grow or to be written"
                    )
                self._check_dimensions(name, value)
                numbers.append((name, num_tensors))
            num_tensors += _num_tensors(value, name)
        return tuple(numbers)

    def _check_dimensions(self, name: str, tensor: torch.Tensor) -> None:
        for dim in self.grows.get(name, ()):
            if dim >= tensor.dim():
                raise ConfigError(
                    f"{self._name}: dimension {dim} of parameter {name!r} is declared to grow, but "
                    f"the tensor has shape {tuple(tensor.shape)}; expected at least {dim + 1} "
                    "dimensions"
                )


def _num_tensors(value: Any, name: str) -> int:
    if isinstance(value, torch.Tensor):
        return 1
    if value is None or isinstance(value, (bool, int, float, str)):
        return 0
    tensors: list[torch.Tensor] = []
    tree.flatten(value, tensors, f"argument {name!r}")
    return len(tensors)


def _mapping(name: str, grows: Any) -> Mapping[str, Any]:
    if not isinstance(grows, Mapping):
        raise ConfigError(f"{name}: grows is {grows!r}; {_EXPECTED}")
    return grows


def _growth(name: str, parameter: str, dims: Any) -> dict[int, Grows]:
    where = f"{name}: grows[{parameter!r}]"
    if not isinstance(dims, Mapping) or not dims:
        raise ConfigError(f"{where} is {dims!r}; {_EXPECTED}")
    found = {}
    for dim, grows in dims.items():
        if type(dim) is not int or dim < 0:
            raise ConfigError(f"{where} has the dimension {dim!r}; expected 0, 1, 2, ...")
        if not isinstance(grows, (Grows, Axis)):
            raise ConfigError(f"{where}[{dim}] is {grows!r}; expected an Axis or a Grows")
        found[dim] = grows if isinstance(grows, Grows) else Grows(grows)
    return found


_EXPECTED = "expected {'parameter': {dimension: Axis(...)}}"
