"""Lets CPU tensors stand for GPU tensors where nothing that the callable uses is on a GPU.

What the callable is given counts as being on the GPU. A tensor that it makes without naming a
device, or moves to ``"cpu"``, counts as host memory, and so does what is computed from such
tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.recording.calls import Call, has_storage, storage_key, tensors_in
from ostinato.recording.memory import LiveMemory
from ostinato.recording.operator_rules import Breach

_T = torch.Tensor

_FACTORIES: frozenset[Any] = frozenset(
    getattr(torch, name)
    for name in (
        *("arange", "bartlett_window", "blackman_window", "empty", "empty_strided", "eye", "full"),
        *("hamming_window", "hann_window", "linspace", "logspace", "ones", "rand", "randint"),
        *("randn", "randperm", "tensor", "tril_indices", "triu_indices", "zeros"),
    )
)
_COPIES = {"aten::copy_", "aten::copy"}


@dataclass(frozen=True, slots=True)
class Stand:
    """How a torch function is run in place of the one that was called."""

    run: Callable[[], Any]
    breach: Breach | None
    is_host: bool
    """The result counts as host memory."""


class Pretence:
    """Which tensors of one run count as host memory."""

    def __init__(self) -> None:
        self._host = LiveMemory()
        self._numbers = LiveMemory()  # Python numbers that torch made tensors of

    def stand_in(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stand | None:
        """How to run a function that has to do with devices; ``None`` for all others."""
        if func in (_T.to, _T.cuda, _T.cpu):
            return self._move(func, args, kwargs)
        device = kwargs.get("device")
        if _is_gpu(device):
            changed = {**kwargs, "device": "cpu"}
            return Stand(lambda: func(*args, **changed), None, False)
        if _is_factory(func) and (device is None or isinstance(device, str)):
            return Stand(lambda: func(*args, **kwargs), None, True)
        return None

    def add(self, result: Any) -> None:
        """The tensors of ``result`` count as host memory from now on."""
        for tensor in tensors_in(result):
            if has_storage(tensor):
                self._host.add(tensor)

    def after(self, call: Call, result: Any, constants: AbstractSet[int]) -> Iterator[Breach]:
        """Breaches of one operator; its result counts as host memory if all of its inputs do."""
        if call.name == "aten::scalar_tensor":
            self._numbers.add(result)
            return
        tensors = [t for t in call.tensors if storage_key(t) not in self._numbers]
        hosts = [storage_key(t) in self._host for t in tensors]
        if not any(hosts):
            return
        if all(hosts):
            self.add(result)
            return
        if call.name in _COPIES:
            yield "device-move", f"{call.name} between host and GPU memory"
            return
        for is_host, tensor in zip(hosts, tensors, strict=True):
            if is_host and storage_key(tensor) not in constants:
                rule = "host-tensor" if tensor.dim() else "host-operand"
                detail = f"{call.name} with a tensor {list(tensor.shape)} made on the CPU"
                yield rule, f"{detail} among GPU tensors"
                return

    def _move(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stand | None:
        source, rest, named = args[0], list(args[1:]), dict(kwargs)
        was_host = has_storage(source) and storage_key(source) in self._host
        if func is _T.cpu:
            return Stand(source.clone, ("host-read", "cpu()"), True)
        if func is _T.cuda:
            target: Any = "cuda"
            rest, named = [], {}
        else:
            target = _taken(rest, named)
        if target is None:
            return None
        goes_to_host = self._is_host(target)
        if isinstance(target, _T):
            named["dtype"] = target.dtype

        def run() -> Any:
            moved = source.to(*rest, **named) if rest or named else source
            return moved.clone() if moved is source and goes_to_host != was_host else moved

        breach: Breach | None = None
        if goes_to_host and not was_host:
            breach = "host-read", "to() the CPU"
        elif was_host and not goes_to_host:
            breach = "device-move", "moving a tensor that the call made on the CPU"
        return Stand(run, breach, goes_to_host)

    def _is_host(self, target: Any) -> bool:
        if isinstance(target, _T):
            return storage_key(target) in self._host
        return isinstance(target, str) and target == "cpu"  # a torch.device may be x.device


def _taken(rest: list[Any], named: dict[str, Any]) -> Any:
    """Take the device, or the tensor that names it, out of the arguments of ``Tensor.to``."""
    if rest and isinstance(rest[0], (str, torch.device, _T, int)):
        return rest.pop(0)
    for name in ("device", "other"):
        if named.get(name) is not None:
            return named.pop(name)
    return None


def _is_gpu(device: Any) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"


def _is_factory(func: Any) -> bool:
    try:
        return func in _FACTORIES
    except TypeError:
        return False
