"""What a runner serves: a callable and what its caller knows about its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ostinato.errors import ConfigError
from ostinato.recording.growth import ResultGrowth
from ostinato.recording.ladder import Axis, Grows


class GateCall(NamedTuple):
    """One further call to check recordings with.

    ``direct`` makes the same call without padding, for a region whose caller pads its inputs
    itself.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    direct: Callable[[], Any] | None = None


GateInputs = Iterable[tuple[Any, ...]] | Callable[[Mapping[str, int]], Iterable[tuple[Any, ...]]]
"""``(args, kwargs)`` or ``GateCall`` each, or a function from a rung's sizes (by axis name) to
such.
"""


@dataclass(frozen=True)
class Region:
    """A callable with a description of its inputs. Inputs are numbered as tensors in flattened
    order.

    ``grows``: input -> dimension -> how it grows. ``uploads``: inputs that arrive on the host and
    travel in one upload; with ``keeps_uploads`` the caller never writes to them again.
    ``in_place``: inputs that are read where they are (their address is part of the key).
    ``is_private``: only the region's owner can rebind what the callable's code reads, and does not;
    tensors alone are watched. ``asks_identity``: the callable may ask whether two inputs are one
    object, so the answer is part of the key. ``result_growth``: how long each result is; found by
    trial calls where it is not given. ``writes``: inputs that the callable writes to; they are
    written back. ``state``: tensors that it writes to and that warm-up and gate must not spoil:
    then ``gate_inputs`` must point to scratch. ``is_timed=False``: a recording serves whatever a
    clock says of a single call, because its owner wants times that do not depend on the host.
    ``shares_buffers``: its owner never borrows a result, so that recordings of one generation may
    share the memory of static inputs and results. ``is_breakable``: on CUDA its pieces are captured
    by the package ``breakable-cuda-graphs`` where that is installed; direct calls in it return
    nothing.
    """

    name: str
    fn: Callable[..., Any]
    grows: Mapping[int, Mapping[int, Grows]] = field(default_factory=dict)
    uploads: frozenset[int] = frozenset()
    keeps_uploads: bool = False
    in_place: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    state: Sequence[torch.Tensor] = ()
    gate_inputs: GateInputs | None = None
    is_private: bool = False
    asks_identity: bool = False
    result_growth: ResultGrowth | None = None
    is_timed: bool = True
    shares_buffers: bool = False
    is_breakable: bool = False

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ConfigError(f"region {self.name!r}: fn is {self.fn!r}; expected a callable")
        if self.state and self.gate_inputs is None:
            raise ConfigError(
                f"region {self.name!r} declares state but no gate_inputs; expected calls that "
                "write to scratch which nobody owns, for warm-up and gate"
            )
        for name, some in (("uploads", self.uploads), ("writes", self.writes)):
            both = some & self.in_place
            if both:
                raise ConfigError(
                    f"region {self.name!r}: inputs {sorted(both)} in {name} and in_place"
                )

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis that something grows with, in order of first mention."""
        seen: dict[Axis, None] = {}
        for growth in self.grows.values():
            for grows in growth.values():
                seen[grows.axis] = None
        return tuple(seen)

    def gate_calls(self, sizes: Mapping[str, int]) -> list[GateCall]:
        """The caller's own inputs for the gate of a recording of these sizes."""
        if self.gate_inputs is None:
            return []
        given = self.gate_inputs(sizes) if callable(self.gate_inputs) else self.gate_inputs
        return [GateCall(*call) for call in given]

    def shares_written(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True when a write to one input shows in another: their static copies are apart."""
        storages = [t.untyped_storage().data_ptr() for t in tensors]
        return any(storages.count(storages[i]) > 1 for i in self.writes)

    def why_sizes_differ(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """What no recording can serve: inputs of one axis that disagree; None where they agree."""
        sizes: dict[Axis, int] = {}
        for i, growth in self.grows.items():
            for dim, grows in growth.items():
                if dim >= tensors[i].dim():
                    raise ConfigError(
                        f"region {self.name!r}: dimension {dim} of input {i} grows, but the input "
                        f"has {tensors[i].dim()} dimensions"
                    )
                length = tensors[i].shape[dim]
                if not grows.fits(length):
                    return f"dimension {dim} of input {i} has {length} elements; expected {grows}"
                size = grows.axis_size(length)
                if sizes.setdefault(grows.axis, size) != size:
                    return (
                        f"axis {grows.axis.name!r} is {sizes[grows.axis]} and, by input {i}, {size}"
                    )
        return None

    def sizes_of(self, tensors: Sequence[torch.Tensor]) -> dict[Axis, int]:
        """How large each axis is in a call; raises ``ConfigError`` where inputs disagree."""
        sizes: dict[Axis, int] = {}
        for i, growth in self.grows.items():
            if i >= len(tensors):
                raise ConfigError(
                    f"region {self.name!r}: input {i} grows, but the call has {len(tensors)} "
                    "tensors"
                )
            for dim, grows in growth.items():
                size = grows.axis_size(tensors[i].shape[dim])
                if sizes.setdefault(grows.axis, size) != size:
                    raise ConfigError(
                        f"region {self.name!r}: axis {grows.axis.name!r} is {sizes[grows.axis]} "
                        f"and, by input {i}, {size}"
                    )
        return sizes
