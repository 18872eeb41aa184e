"""What a call needs besides its patches; batches of the same grids share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ostinato.recording.ladder import Axis
from ostinato.recording.stats import Route
from ostinato.vision.contract import Layout, LayoutTensors, Rung

SERVED_BY_RUNG = Route("rung", "padded")


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call without its patches: made once for a batch of grids, while the plan holds.

    ``padded``: the rung's layout on the host, ``None`` for a direct call, whose reason is
    ``why_direct``. ``num_bytes``: what the layout takes on the host.
    """

    layout: Layout
    rung: Rung | None
    padded: LayoutTensors | None = None
    num_bytes: int = 0
    used: Mapping[Axis, int] = field(default_factory=dict)
    route: Route = SERVED_BY_RUNG
    why_direct: str = ""
    host_inputs: tuple[torch.Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        given = () if self.padded is None else tuple(t for t in self.padded if t is not None)
        object.__setattr__(self, "host_inputs", given)
