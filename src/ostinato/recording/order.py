"""What the recorder is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ostinato.recording.config import GraphConfig
from ostinato.recording.growth import ResultGrowth
from ostinato.recording.key import Key
from ostinato.recording.ladder import Axis
from ostinato.recording.ledger import Ledger
from ostinato.recording.region import Region

Invoke = Callable[[Sequence[torch.Tensor]], Any]
"""Calls the region's callable with these tensors in the places of its inputs."""


class GateSet(NamedTuple):
    """The tensors of one further call, and how to make that call without padding."""

    tensors: Sequence[torch.Tensor]
    direct: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Order:
    """What is to be recorded: one key of one region, with an example call.

    ``tensors`` are the example's own, of the key's specs for an exact recording and of any size up
    to ``rung`` for a rung. ``direct`` makes the example call without padding where the caller pads
    its inputs itself. ``gate_sets`` come from the caller and have the example's structure.
    Where there is a ``direct`` and several ``gate_sets``, the first of them is the example.
    ``known_times`` are microseconds of a recorded and of a direct call, measured before;
    ``direct_us`` are those of the direct call alone.
    """

    region: Region
    ledger: Ledger
    config: GraphConfig
    key: Key
    invoke: Invoke
    tensors: Sequence[torch.Tensor]
    gate_sets: Sequence[GateSet] = ()
    direct: Callable[[], Any] | None = None
    rung: Mapping[Axis, int] | None = None
    result_growth: ResultGrowth | None = None
    known_times: tuple[float, float] | None = None
    direct_us: float | None = None

    @property
    def example(self) -> GateSet:
        """What warm-up and gate start from: the caller's scratch calls where state is declared."""
        return self.gate_sets[0] if self.region.state else GateSet(self.tensors, self.direct)
