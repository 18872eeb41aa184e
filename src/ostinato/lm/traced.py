"""A decoder as a graph: one symbolic trace for all numbers of tokens, split at the attention.

``torch.compile`` traces the whole forward with the number of tokens as a symbol. Fused operators
are ``torch.library`` operators, so each is one node of the graph, and so is the attention, where
the graph is split: the parts between are pieces of a recording, run as they were traced or through
Inductor. The compiled frame is given up after the trace. What serves is the graph, without guards,
so that nothing is traced again; a trace that does not hold for every size is refused.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from ostinato.errors import RecordingRefused
from ostinato.lm.backends import Compiler
from ostinato.lm.compiled import CompiledPiece
from ostinato.lm.contract import Batch
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.split import attend_marked, split_at_attention

Sources = list[Callable[[list[Tensor]], Any]]
"""For each input of a graph: where it is found, given the arguments of a call."""
EXAMPLE_TOKENS = 24
"""Any number but 0 and 1, which torch takes for constants."""


class Traced:
    """``Qwen.forward`` for ``num_sequences`` sequences of any number of tokens.

    A graph for text and, where media bring DeepStack levels, one for media: a different forward.
    """

    def __init__(
        self, model: Qwen, *, num_sequences: int, num_levels: int, compiler: Compiler
    ) -> None:
        self._graphs = {
            levels: Graph(model, num_sequences, levels, compiler) for levels in {0, num_levels}
        }

    @property
    def num_traces(self) -> int:
        return sum(graph.num_traces for graph in self._graphs.values())

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        cache: Tensor,
        *,
        max_query_length: int,
        deepstack: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """No sequence has more queries than there are rows: the traced bound is that."""
        return self._graphs[len(deepstack)](x, batch, cache, deepstack)


class Graph:
    """One trace: the split graph, and where each of its inputs comes from at a call."""

    def __init__(
        self, model: Qwen, num_sequences: int, num_levels: int, compiler: Compiler
    ) -> None:
        self.num_traces = 0
        self._num_sequences = num_sequences
        given = _example(model, num_sequences, num_levels)
        owners = {
            id(tensor): (module, name)
            for module in model.modules()
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
        }
        found: Sources = []

        def forward(x: Tensor, *rest: Tensor) -> Tensor:
            logits: Tensor = model(
                x,
                Batch(*rest[:6]),
                rest[6],
                max_query_length=x.shape[0],
                deepstack=rest[7:],
                attend=attend_marked,
            )
            return logits

        def backend(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            self.num_traces += 1
            split, pieces = split_at_attention(graph)
            assert len(pieces) == model.config.num_layers + 1, pieces
            if compiler == "inductor":
                for name in pieces:
                    setattr(split, name, CompiledPiece(split.get_submodule(name)))
            self._split = split

            def run(*args: Any) -> Any:
                found.extend(_source(arg, given, owners) for arg in args)
                return split(*args)

            return run

        _trace(forward, backend, given)
        self._sources = found

    def __call__(
        self, x: Tensor, batch: Batch, cache: Tensor, deepstack: tuple[Tensor, ...]
    ) -> Tensor:
        if batch.rows.shape[0] != self._num_sequences:
            raise ValueError(
                f"{batch.rows.shape[0]} sequences; the trace is of {self._num_sequences}"
            )
        given = [x, *batch, cache, *deepstack]
        logits: Tensor = self._split(*(source(given) for source in self._sources))[0]
        return logits


def _example(model: Qwen, num_sequences: int, num_levels: int) -> list[Tensor]:
    """Padding alone, against a page of scratch: ``x``, the batch, the cache, the levels."""
    config, like = model.config, model.table

    def integers(*shape: int, value: int = 0) -> Tensor:
        return torch.full(shape, value, dtype=torch.int32, device=like.device)

    n = EXAMPLE_TOKENS
    rows = [like.new_zeros(n, config.width) for _ in range(1 + num_levels)]
    batch = Batch(
        positions=integers(3, n),
        slots=integers(n, value=-1),
        page_table=integers(num_sequences, 1),
        query_offsets=integers(num_sequences + 1),
        kv_lengths=integers(num_sequences),
        rows=integers(num_sequences),
    )
    cache = like.new_zeros(config.num_layers, 2, 1, 16, config.num_kv_heads, config.head_dim)
    for tensor, dim in ((batch.positions, 1), (batch.slots, 0), *((row, 0) for row in rows)):
        torch._dynamo.mark_dynamic(tensor, dim)
    return [rows[0], *batch, cache, *rows[1:]]


def _trace(forward: Callable[..., Tensor], backend: Any, given: list[Tensor]) -> None:
    """Call ``forward`` once through ``backend``. A copy of its code is traced: compiled frames are
    kept with code, and another model's must not be found. What is marked is a symbol and nothing
    else: ``dynamic=False`` keeps the tracer from guessing by what it saw of other models.
    """
    assert isinstance(forward, types.FunctionType)
    own = types.FunctionType(
        forward.__code__.replace(co_name="decoder"),
        forward.__globals__,
        closure=forward.__closure__,
    )
    try:
        with torch.inference_mode():
            torch.compile(own, fullgraph=True, dynamic=False, backend=backend)(*given)
    except BackendCompilerFailed as error:
        raise RecordingRefused(
            f"a piece of the decoder was not compiled: {_first_line(error.inner_exception)}",
            rule="compile",
            fix="use --cuda-graph-tc-compiler eager",
        ) from error
    except (TorchDynamoException, ConstraintViolationError) as error:
        raise RecordingRefused(
            f"the decoder is not one graph for all numbers of tokens: {_first_line(error)}",
            rule="trace",
            location=_place_of(error),
            fix="use --cuda-graph-backend-prefill full",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _place_of(error: Exception) -> str | None:
    """The innermost line of the code that was traced, from the stack that the tracer reports."""
    stack = list(getattr(error, "real_stack", None) or ())
    if stack:
        return f"{stack[-1].filename}:{stack[-1].lineno}"
    told = str(error).partition("\n\n  - ")[0]
    places = re.findall(r'File "(.+?)", line (\d+)', told)
    return ":".join(places[-1]) if places else None


def _source(
    arg: Any, given: list[Tensor], owners: Mapping[int, tuple[nn.Module, str]]
) -> Callable[[list[Tensor]], Any]:
    """Weights are asked for by name at each call: one that is put in another's place is seen."""
    if isinstance(arg, int):
        assert arg == EXAMPLE_TOKENS, "the number of tokens is the only symbol"
        return lambda given: given[0].shape[0]
    for i, tensor in enumerate(given):
        if tensor is arg:
            return operator.itemgetter(i)
    module, name = owners[id(arg)]
    return lambda given: getattr(module, name)
