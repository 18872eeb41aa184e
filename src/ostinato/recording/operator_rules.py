"""Which operator calls break a rule, as a dispatch mode sees them.

Yields ``(rule name, what was called)``; it never raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ostinato.recording.calls import Call, has_storage, storage_key, tensors_in

Breach = tuple[str, str]

_BY_NAME = {
    "aten::_local_scalar_dense": ("host-scalar", "reading a tensor's value in Python"),
    "aten::_linalg_check_errors": ("host-scalar", "the error check of a linalg function"),
    "aten::equal": ("host-compare", "torch.equal"),
    "aten::allclose": ("host-compare", "torch.allclose"),
    "aten::_pin_memory": ("host-memory", "pin_memory"),
}
_INDEX_READS = {"aten::index", "aten::_unsafe_index"}
_INDEX_WRITES = {
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index_put",
}
_DATA_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def breaches_before(call: Call, constants: AbstractSet[int] = frozenset()) -> Iterator[Breach]:
    """Breaches that show before the call runs. ``constants``: storages of baked Python numbers."""
    if call.name in _BY_NAME:
        yield _BY_NAME[call.name]
        return
    for check in (_baked, _boolean_index, _data_dependent, _device_move):
        yield from check(call)
    yield from _host_operand(call, constants)


def breaches_after(call: Call, result: Any) -> Iterator[Breach]:
    """Breaches that only the result shows."""
    if not all(has_storage(tensor) for tensor in tensors_in(result)):
        yield "layout", f"{call.name} with a sparse, mkldnn, nested or quantised result"


def _baked(call: Call) -> Iterator[Breach]:
    if call.name == "aten::lift_fresh":
        yield "baked-data", "a tensor made from Python data"


def _boolean_index(call: Call) -> Iterator[Breach]:
    if call.name not in _INDEX_READS | _INDEX_WRITES:
        return
    indices = tensors_in(call.argument("indices"))
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        if call.name in _INDEX_READS:
            yield "boolean-read", "indexing with a boolean mask"
        else:
            yield "boolean-write", "writing through a boolean mask"


def _data_dependent(call: Call) -> Iterator[Breach]:
    if not call.has_tag(*_DATA_TAGS) or call.name in _INDEX_READS:
        return
    if call.name == "aten::repeat_interleave" and call.argument("output_size") is not None:
        return
    yield "data-dependent", call.name


def _device_move(call: Call) -> Iterator[Breach]:
    if call.name == "aten::_to_copy":
        source, device = call.args[0].device, call.argument("device")
        if device is not None and _kind(device) != _kind(source):
            yield "device-move", f"a copy from {source} to {device}"
    elif call.name in ("aten::copy_", "aten::copy"):
        target, source = call.args[0].device, call.args[1].device
        if _kind(target) != _kind(source):
            yield "device-move", f"a copy from {source} to {target}"
    if call.argument("pin_memory") is True:
        yield "host-memory", f"{call.name} with pin_memory=True"


def _host_operand(call: Call, constants: AbstractSet[int]) -> Iterator[Breach]:
    if call.name in ("aten::copy_", "aten::copy"):
        return
    on_device = any(_kind(tensor.device) != "cpu" for tensor in call.tensors)
    if not on_device:
        return
    for tensor in call.tensors:
        if _kind(tensor.device) == "cpu" and storage_key(tensor) not in constants:
            yield "host-operand", f"{call.name} with a CPU tensor among GPU tensors"
            return


def _kind(device: Any) -> str:
    return torch.device(device).type
