"""Which Python-level torch calls break a rule although a dispatch mode never sees them.

Yields like ``operator_rules``: it never raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ostinato.recording.calls import has_storage, storage_key
from ostinato.recording.operator_rules import Breach

_T = torch.Tensor


def _property(name: str, access: str) -> Any:
    return getattr(getattr(_T, name), access)


_ALWAYS: dict[Any, Breach] = {
    _T.tolist: ("host-read", "tolist()"),
    _T.numpy: ("host-read", "numpy()"),
    _T.__array__: ("host-read", "conversion to a numpy array"),
    _T.cpu: ("host-read", "cpu()"),
    _T.__repr__: ("print", "repr() of a tensor"),
    _T.__format__: ("print", "formatting a tensor"),
    _T.data_ptr: ("address", "data_ptr()"),
    _property("__cuda_array_interface__", "__get__"): ("address", "__cuda_array_interface__"),
    _T.__dlpack__: ("export", "__dlpack__()"),
    _T.pin_memory: ("host-memory", "pin_memory()"),
    _property("data", "__set__"): ("rebind", "assigning to tensor.data"),
    _T.new_tensor: ("baked-data", "new_tensor()"),
    torch.tensor: ("baked-data", "torch.tensor()"),
}
_DESCRIPTIONS: dict[Any, str] = {
    _T.storage_offset: "storage_offset()",
    _T.untyped_storage: "untyped_storage()",
    _T.storage: "storage()",
    _property("_base", "__get__"): "_base",
    **dict.fromkeys((_T.is_inference, torch.is_inference), "is_inference()"),
    **dict.fromkeys((_T.is_conj, torch.is_conj), "is_conj()"),
    **dict.fromkeys((_T.is_neg, torch.is_neg), "is_neg()"),
}
_STRIDED = (_T.as_strided, torch.as_strided, _T.as_strided_, torch.as_strided_)
_CONVERTERS = {torch.as_tensor: "torch.as_tensor()", torch.asarray: "torch.asarray()"}
_SPLITS = (torch.tensor_split, _T.tensor_split)
_MOVES = {_T.to: "to()", _T.cuda: "cuda()"}


def function_breach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Breach | None:
    """The breach of one call of a torch function, or ``None``."""
    try:
        if func in _ALWAYS:
            return _ALWAYS[func]
    except TypeError:
        return None
    if func in _CONVERTERS and not isinstance(args[0] if args else None, torch.Tensor):
        return "baked-data", _CONVERTERS[func]
    if func in _SPLITS and any(isinstance(v, _T) for v in (*args[1:], *kwargs.values())):
        return "host-read", "tensor_split() at tensor indices"
    if func in _MOVES:
        return _move_breach(func, args, kwargs)
    return None


def description_breach(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: AbstractSet[int]
) -> Breach | None:
    """A question about an input whose answer is in no key; ``inputs`` are their storages."""
    try:
        name = _DESCRIPTIONS.get(func)
        if name is None and func in _STRIDED and (len(args) > 3 or "storage_offset" in kwargs):
            name = "as_strided() at an offset in the storage"
    except TypeError:
        return None
    if name is None or not args or not isinstance(args[0], _T) or not has_storage(args[0]):
        return None
    return ("description", f"{name} of an input") if storage_key(args[0]) in inputs else None


def sets_python_number(func: Any, args: tuple[Any, ...]) -> bool:
    """True for ``tensor[...] = number``: the number is baked like any other Python number."""
    return func is _T.__setitem__ and isinstance(args[2], (bool, int, float, complex))


def _move_breach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Breach | None:
    source = args[0].device
    target = _target_device(func, args[1:], kwargs)
    if target is None or target.type == source.type:
        return None
    return "device-move", f"{_MOVES[func]} from {source} to {target}"


def _target_device(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.device | None:
    if func is _T.cuda:
        return torch.device("cuda")
    for value in (*args[:1], kwargs.get("device"), kwargs.get("other")):
        if isinstance(value, torch.device):
            return value
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return torch.device(value)
    return None
