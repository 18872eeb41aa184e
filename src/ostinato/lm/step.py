"""The device work of one step, and the one way in which it is recorded: a recording per rung.

Whoever builds a step's inputs pads them to a rung, with recordings and without, so that an answer
does not depend on whether anything is recorded. Nothing is recorded while somebody waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ostinato.errors import RecordingRefused
from ostinato.kernels.gate import Numerics, using_numerics
from ostinato.lm.contract import Batch, LanguageModel
from ostinato.lm.sampling import Choosing, choose
from ostinato.lm.slots import Slots
from ostinato.recording.config import GraphConfig
from ostinato.recording.region import GateCall, Region
from ostinato.recording.runner import Runner
from ostinato.recording.served import Served
from ostinato.recording.stats import Counters, Stats

NEVER_ON_THE_PATH = 1 << 62
NUM_UPLOADED = 1 + len(Batch._fields) + len(Choosing._fields)
log = logging.getLogger(__name__)


class Inputs(NamedTuple):
    """Of T rows and B sequences, padded to a rung, on the host but for ``features``.

    ``ids``: (T,) int64; -s is the newest token of slot s, which the host may not know yet.
    ``sources``: (T,) int64, the row of ``features`` that replaces a token's embedding, negative for
    text. ``features``: (T, width * (1 + DeepStack levels)) on the device. Both or neither.
    """

    ids: Tensor
    batch: Batch
    by: Choosing
    sources: Tensor | None = None
    features: Tensor | None = None


class Step:
    """``(tokens, logits)`` of inputs: embed, merge, decode, choose; writes to the cache and to
    what the device remembers of a sequence.

    ``forward``: the model's own unless it is called in another way, with the same arguments.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: Tensor,
        slots: Slots,
        forward: Callable[..., Tensor] | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.slots = slots
        self.forward = forward or model

    def run(
        self,
        ids: Tensor,
        batch: Batch,
        by: Choosing,
        sources: Tensor | None = None,
        features: Tensor | None = None,
        *,
        max_query_length: int,
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B,) int64 and logits (B, num_tokens), penalties left out."""
        x = self.model.embed(self.slots.known(ids))
        deepstack: tuple[Tensor, ...] = ()
        if sources is not None and features is not None:
            is_media = (sources >= 0)[:, None]
            rows = features.index_select(0, sources.clamp(min=0))
            main, *levels = rows.split(x.shape[1], dim=1)
            x = torch.where(is_media, main, x)
            deepstack = tuple(torch.where(is_media, level, 0.0) for level in levels)
        logits = self.forward(
            x, batch, self.cache, max_query_length=max_query_length, deepstack=deepstack
        )
        tokens = choose(self.slots.penalised(logits, by), by)
        self.slots.keep(tokens, by)
        return tokens, logits


class RecordedStep:
    """One kind of step (decode, prefill) behind recordings; ``runner`` is ``None`` without any."""

    def __init__(
        self,
        name: str,
        step: Step,
        runner: Runner | None,
        graph: GraphConfig,
        *,
        numerics: Numerics = "fast",
        is_breakable: bool = False,
    ) -> None:
        self._name = name
        self._step = step
        self._device = step.cache.device
        self._runner = runner if graph.mode != "off" else None
        self._config = replace(graph, mode="exact", min_hits=NEVER_ON_THE_PATH)
        self._numerics: Numerics = numerics
        self._is_breakable = is_breakable
        self._counters = Counters()
        self._kinds: dict[bool, Served] = {}  # with media and without; each holds its rungs
        self._rungs: set[tuple[int, int, bool]] = set()

    def __call__(self, inputs: Inputs, max_query_length: int) -> tuple[Tensor, Tensor]:
        """Tokens and logits of padded inputs; valid until the next step."""
        how = {"max_query_length": max_query_length}
        with using_numerics(self._numerics):
            if _shape_of(inputs) not in self._rungs:
                return self._direct(inputs, how)
            served = self._kinds[inputs.sources is not None]
            result: tuple[Tensor, Tensor] = served.call(_given(inputs), how, borrow=True)
            return result

    def _direct(self, inputs: Inputs, how: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        def up(tensor: Tensor) -> Tensor:
            return tensor.to(self._device, non_blocking=True)

        batch, by = Batch(*map(up, inputs.batch)), Choosing(*map(up, inputs.by))
        sources = None if inputs.sources is None else up(inputs.sources)
        return self._step.run(up(inputs.ids), batch, by, sources, inputs.features, **how)

    def record(self, inputs: Inputs, max_query_length: int) -> bool:
        """Record the rung of ``inputs``, which point to scratch pages; false where it is refused:
        then it is served directly, and the reason is in the log and in ``stats()``.
        """
        if self._runner is None:
            return False
        how = {"max_query_length": max_query_length}
        given = _given(inputs)
        served = self._kind_of(inputs)
        try:
            with using_numerics(self._numerics):
                entry = served.record(given, how, gate_calls=[GateCall(given, how)])
        except RecordingRefused as refused:
            rows = inputs.ids.shape[0]
            log.warning("%s of %d is served directly: %s", self._name, rows, refused)
            entry = None
        if entry is not None:
            self._rungs.add(_shape_of(inputs))
        return entry is not None

    def _kind_of(self, inputs: Inputs) -> Served:
        """One region for all rungs with media, one for those without: what their first recording
        shows of the code is not looked at again.
        """
        assert self._runner is not None
        has_media = inputs.sources is not None
        if has_media not in self._kinds:
            region = Region(
                f"{self._name} with media" if has_media else self._name,
                self._step.run,
                uploads=frozenset(range(NUM_UPLOADED + has_media)),
                state=(self._step.cache, *self._step.slots.state),
                gate_inputs=[],
                is_private=True,
                is_timed=False,
                is_breakable=self._is_breakable,
            )
            self._kinds[has_media] = self._runner.serve(region, self._config, self._counters)
        return self._kinds[has_media]

    def stats(self) -> Stats | None:
        """How steps were served; ``None`` where nothing is recorded."""
        served = list(self._kinds.values())
        return self._runner.stats(*served) if self._runner is not None and served else None

    def close(self) -> None:
        """Free the recordings."""
        kinds, self._kinds = self._kinds, {}  # another thread may close too
        self._rungs = set()
        for served in kinds.values():
            served.close()

    def free_cache(self) -> None:
        """Give back the memory of keys and values, whoever still holds the tensor."""
        self._step.cache.untyped_storage().resize_(0)


def _given(inputs: Inputs) -> tuple[Any, ...]:
    return tuple(inputs) if inputs.sources is not None else tuple(inputs[:3])


def _shape_of(inputs: Inputs) -> tuple[int, int, bool]:
    return inputs.ids.shape[0], inputs.batch.rows.shape[0], inputs.sources is not None
