"""One operator call as a dispatch mode sees it: its tensors, what it writes, whether it draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

_HIDDEN_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
}
"""Arguments that an operator writes although its schema does not say so."""

_BACKEND_KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument or a result of an operator: tensors, and lists of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of a tensor's memory, unique for as long as that memory lives."""
    return int(tensor.untyped_storage()._cdata)


def generator_key(generator: torch.Generator) -> int:
    """The identity of a generator; each operator call sees another Python object for it."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def has_storage(tensor: torch.Tensor) -> bool:
    """False for sparse, mkldnn, nested and quantised tensors."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


@dataclass(frozen=True)
class Call:
    """An operator and its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Qualified name without the overload, for example ``"aten::add"``."""
        return str(self.func._schema.name)

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments that has memory of its own."""
        return [t for t in tensors_in((self.args, self.kwargs)) if has_storage(t)]

    @cached_property
    def written(self) -> list[torch.Tensor]:
        """The tensors among the arguments that the call writes."""
        return [t for value in self._written_values() for t in tensors_in(value) if has_storage(t)]

    def argument(self, name: str, default: Any = None) -> Any:
        """The value of a named argument, given by position, by name, or by the schema's default."""
        for position, declared in enumerate(self.func._schema.arguments):
            if declared.name == name:
                if name in self.kwargs:
                    return self.kwargs[name]
                if position < len(self.args):
                    return self.args[position]
                return declared.default_value
        return default

    def has_tag(self, *tags: torch.Tag) -> bool:
        return any(tag in self.func.tags for tag in tags)

    @property
    def is_random(self) -> bool:
        """True if the call draws random numbers (dropout that is switched off does not)."""
        if not self.has_tag(torch.Tag.nondeterministic_seeded):
            return False
        if any(self.argument(name, True) is False for name in ("train", "training")):
            return False
        return not any(self.argument(name) == 0.0 for name in ("dropout_p", "dropout"))

    @property
    def generators(self) -> Iterator[torch.Generator]:
        """Generators that were passed explicitly."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Generator):
                yield value

    def _written_values(self) -> Iterator[Any]:
        for position, declared in enumerate(self.func._schema.arguments):
            alias = declared.alias_info
            if alias is None or not alias.is_write:
                continue
            if declared.name in self.kwargs:
                yield self.kwargs[declared.name]
            elif position < len(self.args):
                yield self.args[position]
        if self.name in _HIDDEN_WRITES and self.argument("training", True) is not False:
            yield from (self.argument(name) for name in _HIDDEN_WRITES[self.name])


def is_composite(call: Call) -> bool:
    """True for an operator that is a program of other operators on the device of its tensors.

    Such operators arrive undecomposed in inference mode.
    """
    device = next((tensor.device.type for tensor in call.tensors), "cpu")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = call.func.name()
    return bool(has_kernel(name, "CompositeImplicitAutograd")) and not has_kernel(
        name, _BACKEND_KEYS.get(device, "CPU")
    )


def decompose(call: Call) -> Any:
    """Run a composite operator as torch does, so that its parts are seen one by one."""
    return call.func._op_dk(
        torch._C.DispatchKey.CompositeImplicitAutograd, *call.args, **call.kwargs
    )


def is_foreign_subclass(kind: type) -> bool:
    """True for a tensor subclass that turns into plain operators by itself (nested, quantised)."""
    from torch._subclasses.fake_tensor import FakeTensor

    if kind is torch.Tensor or issubclass(kind, FakeTensor):
        return False
    handler = getattr(kind, "__torch_dispatch__", torch._C._disabled_torch_dispatch_impl)
    return handler is not torch._C._disabled_torch_dispatch_impl
