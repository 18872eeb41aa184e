"""Splits a traced decoder at its attention, which becomes a direct call between pieces."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module

from ostinato.lm.apart import attend_into
from ostinato.lm.contract import Batch
from ostinato.recording.pieces import direct

_library = torch.library.Library("ostinato", "FRAGMENT")
_library.define(
    "attend_into(Tensor(a!) out, Tensor q, Tensor k, Tensor v, Tensor(b!) cache, Tensor[] batch, "
    "SymInt max_query_length, float scale) -> ()"
)
torch.library.register_fake("ostinato::attend_into", lambda *args: None, lib=_library)
MARK = torch.ops.ostinato.attend_into.default
"""The attention in a traced graph. It has no implementation: no graph is run before its split."""


def attend_marked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    batch: Batch,
    *,
    max_query_length: int,
    scale: float,
) -> Tensor:
    """See ``Attend``: one node of a traced graph."""
    out = q.new_empty(q.shape)
    MARK(out, q, k, v, cache, list(batch), max_query_length, scale)
    return out


def _attend_directly(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Tensor,
    batch: Sequence[Tensor],
    max_query_length: int,
    scale: float,
) -> None:
    direct(attend_into, out, q, k, v, cache, Batch(*batch), max_query_length, scale)


def split_at_attention(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[str]]:
    """The graph as a sequence of submodules, and the names of those that are pieces of a recording;
    the others call the attention directly. A view of the cache goes with the attention it is for:
    what a piece takes and gives is its own.
    """
    graph.graph.eliminate_dead_code()
    graph.recompile()
    part: dict[fx.Node, int] = {}
    now = 0
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        is_attention = node.target is MARK
        part[node] = now + is_attention
        now += 2 * is_attention
        if is_attention:
            part |= dict.fromkeys(_views(node), part[node])
    split = split_module(graph, graph, lambda node: part[node], keep_original_order=True)
    names = dict(split.named_children())
    for module in names.values():
        assert isinstance(module, fx.GraphModule)
        for node in module.graph.nodes:
            if node.target is MARK:
                node.target = _attend_directly
        module.recompile()
    return split, [name for name in names if int(name.removeprefix("submod_")) % 2 == 0]


def _views(attention: fx.Node) -> list[fx.Node]:
    """Elements of the graph's inputs that this node alone reads."""
    return [
        node
        for node in attention.all_input_nodes
        if node.target is operator.getitem
        and len(node.users) == 1
        and all(given.op == "placeholder" for given in node.all_input_nodes)
    ]
