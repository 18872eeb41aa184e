"""A piece of a graph that Inductor compiled, behind one operator.

What Inductor generates launches kernels and fills memory by itself: only as an operator can the CPU
backend and the probe see what goes in and what comes out.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, fx, nn

_library = torch.library.Library("ostinato", "FRAGMENT")
_library.define("compiled_piece(int number, Tensor[] tensors, int[] sizes) -> Tensor[]")
_numbers = itertools.count()
_pieces: weakref.WeakValueDictionary[int, CompiledPiece] = weakref.WeakValueDictionary()


class CompiledPiece(nn.Module):
    """Called like the piece, with tensors and whole numbers.

    Make it while the graph is being traced: the sizes that are symbols there stay symbols.
    """

    def __init__(self, piece: nn.Module) -> None:
        from torch._inductor import standalone_compile

        super().__init__()
        assert isinstance(piece, fx.GraphModule)
        inputs = [node for node in piece.graph.nodes if node.op == "placeholder"]
        result = piece.graph.output_node()
        self._is_single = isinstance(result.args[0], fx.Node)
        if self._is_single:
            result.args = (result.args,)
            piece.recompile()
        examples = [node.meta["example_value"] for node in inputs]
        self.compiled = standalone_compile(piece, examples, dynamic_shapes="from_tracing_context")
        self._is_tensor = [isinstance(example, Tensor) for example in examples]
        self._number = next(_numbers)
        _pieces[self._number] = self

    def forward(self, *args: Any) -> Any:
        tensors = [arg for arg, is_one in zip(args, self._is_tensor, strict=True) if is_one]
        sizes = [arg for arg, is_one in zip(args, self._is_tensor, strict=True) if not is_one]
        results = torch.ops.ostinato.compiled_piece(self._number, tensors, sizes)
        return results[0] if self._is_single else tuple(results)

    def run(self, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """The compiled code itself. Results that are views of inputs are copied, as operators'
        results must not be.
        """
        of_tensors, of_sizes = iter(tensors), iter(sizes)
        args = [next(of_tensors) if is_one else next(of_sizes) for is_one in self._is_tensor]
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        return [
            result.clone() if result.untyped_storage().data_ptr() in given else result
            for result in self.compiled(*args)
        ]


def _run(number: int, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    return _pieces[number].run(tensors, sizes)


_library.impl("compiled_piece", _run, "CompositeExplicitAutograd")
