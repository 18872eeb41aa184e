"""What can be said about a call before it runs, and about its result: keys, modes, relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ostinato.errors import UnkeyableArgument
from ostinato.recording import tree
from ostinato.recording.calls import has_storage, storage_key, tensors_in
from ostinato.recording.places import Survey

Breach = tuple[str, str]


def unkeyable(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Breach]:
    """Every argument that has no exact place in a key."""
    for name, value in (*((f"argument {i}", a) for i, a in enumerate(args)), *kwargs.items()):
        try:
            tree.flatten(value, [], name)
        except UnkeyableArgument as error:
            yield "unkeyable", f"{error}: it"


def modes(
    fn: Callable[..., Any], found: Survey, inputs: Sequence[torch.Tensor], device_type: str
) -> Iterator[Breach]:
    """What the call runs under: gradients, autocast, training mode, hooks."""
    if torch.is_grad_enabled():
        asking = [t for t in (*inputs, *found.tensors) if t.requires_grad]
        if asking:
            yield "grad", f"{len(asking)} tensors that require a gradient, in grad mode: the call"
    if torch.is_autocast_enabled(device_type):
        yield "autocast", f"autocast to {torch.get_autocast_dtype(device_type)}"
    modules = list(_modules(fn, found))
    training = [m for m in modules if m.training and (m._buffers or _acts_in_training(m))]
    if training:
        yield "training", f"training mode of {len(training)} modules ({_kinds(training)})"
    if any(found.hook_dicts):
        hooked = [m for m in modules if m._forward_hooks or m._forward_pre_hooks]
        yield "hooks", f"a forward hook of {_kinds(hooked) or 'a module'}"


def results(
    result: Any, inputs: Sequence[torch.Tensor], found: Survey
) -> Iterator[tuple[str, str]]:
    """Aliases, Python values, and what has no place in a key."""
    leaves: list[torch.Tensor] = []
    try:
        structure = tree.flatten(result, leaves, "the result")
    except UnkeyableArgument as error:
        yield "result-value", f"{error}: it"
        return
    if _has_values(result):
        yield "result-constant", f"a Python value in the result {tree.describe(structure)}"
    owners = {storage_key(t): "of a parameter or buffer" for t in found.tensors if has_storage(t)}
    owners.update((storage_key(t), "of an input") for t in inputs if has_storage(t))
    for i, leaf in enumerate(leaves):
        if has_storage(leaf):
            owner = owners.setdefault(storage_key(leaf), f"of result {i}")
            if owner != f"of result {i}":
                yield "result-alias", f"result {i}, which shares memory {owner},"


def _has_values(value: Any) -> bool:
    if isinstance(value, (bool, int, float, str)):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_values, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_values, value))


def _modules(fn: Callable[..., Any], found: Survey) -> Iterator[torch.nn.Module]:
    seen: set[int] = set()
    for value in (fn, getattr(fn, "__self__", None), *(s.value for s in found.slots)):
        if isinstance(value, torch.nn.Module):
            for module in value.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield module


def _acts_in_training(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0


def _kinds(modules: Sequence[torch.nn.Module]) -> str:
    return ", ".join(sorted({type(m).__qualname__ for m in modules})[:4])


def is_on_gpu(value: Any, found: Survey) -> bool:
    """True when an argument, parameter or buffer is on a GPU."""
    return any(t.is_cuda for t in (*tensors_in(value), *found.tensors))
