"""Fills and copies of device memory in a graph, as kernels.

The driver launches a graph of kernels alone in a fraction of the time that one takes it which holds
a memset or a large memcpy as well (300 nodes on an H200: 10 us of the host instead of 170). Torch
records every contiguous copy as such a node; cuDNN's attention and cuBLAS clear counters with them.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from ostinato.recording.cuda_census import checked

MAX_BYTES = 1 << 26
"""Beyond, what the launch takes no longer counts beside the node itself."""
_THREADS = 256
_STEPS = 4
"""Units that a thread writes, ``_THREADS`` apart: enough loads under way to fill the memory."""
_log = logging.getLogger(__name__)


class Work(NamedTuple):
    """One kernel over ``number`` units of memory; ``what``: the source's address, or the word."""

    kernel: str
    to: int
    what: int
    number: int


def fill(to: int, value: int, element_size: int, width: int, height: int) -> Work | None:
    """``width`` elements in ``height`` rows from the address ``to`` on.

    None where it is none of whole words of 32 bits in one row.
    """
    size = element_size * width
    if height != 1 or to % 4 or size % 4 or not 0 < size <= MAX_BYTES:
        return None
    element = (value & ((1 << 8 * element_size) - 1)).to_bytes(element_size, "little")
    word = int.from_bytes(element * (4 // element_size), "little")
    return Work("fill", to, word, size // 4)


def copy(to: int, source: int, size: int) -> Work | None:
    """``size`` contiguous bytes. None where they are no whole words of 32 bits."""
    if not 0 < size <= MAX_BYTES:
        return None
    unit = next((n for n in (16, 4) if to % n == source % n == size % n == 0), None)
    return None if unit is None else Work(f"copy_{unit}", to, source, size // unit)


def to_kernels(raw_graph: int) -> int:
    """Make kernels of the fills and copies of a ``cudaGraph_t`` on the current device; how many.

    What moves between devices or to and from the host stays as it is, and so does what has several
    rows, is huge or is not made of whole words.
    """
    driver = importlib.import_module("cuda.bindings.driver")  # comes with torch's CUDA builds

    graph = driver.CUgraph(raw_graph)
    device = torch.cuda.current_device()
    num_nodes = checked(driver.cuGraphGetNodes(graph, 0))[-1]
    nodes = checked(driver.cuGraphGetNodes(graph, num_nodes))[0] if num_nodes else []
    kinds = driver.CUgraphNodeType
    readers: dict[Any, Callable[[Any, Any, int], Work | None]] = {
        kinds.CU_GRAPH_NODE_TYPE_MEMSET: _fill_of,
        kinds.CU_GRAPH_NODE_TYPE_MEMCPY: _copy_of,
    }
    num_replaced = 0
    for node in nodes:
        reader = readers.get(checked(driver.cuGraphNodeGetType(node))[0])
        work = None if reader is None else reader(driver, node, device)
        kernels = None if work is None else _kernels(device)
        if work is not None and kernels is not None:
            _replace(driver, graph, node, work, kernels[work.kernel])
            num_replaced += 1
    return num_replaced


def _fill_of(driver: Any, node: Any, device: int) -> Work | None:
    params = checked(driver.cuGraphMemsetNodeGetParams(node))[0]
    return fill(
        *(int(params.dst), int(params.value)), params.elementSize, params.width, params.height
    )


def _copy_of(driver: Any, node: Any, device: int) -> Work | None:
    params = checked(driver.cuGraphMemcpyNodeGetParams(node))[0]
    on_device = (
        driver.CUmemorytype.CU_MEMORYTYPE_DEVICE,
        driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED,
    )
    is_plain = (
        (params.Height, params.Depth) == (1, 1)
        and params.srcMemoryType in on_device
        and params.dstMemoryType in on_device
        and not any((params.srcY, params.srcZ, params.dstY, params.dstZ))
    )
    if not is_plain:
        return None
    to = int(params.dstDevice) + params.dstXInBytes
    source = int(params.srcDevice) + params.srcXInBytes
    if not all(_is_memory_of(driver, device, address) for address in (to, source)):
        return None
    return copy(to, source, params.WidthInBytes)


def _is_memory_of(driver: Any, device: int, address: int) -> bool:
    kinds = driver.CUpointer_attribute
    failed, kind = driver.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    if int(failed) or int(kind) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
        return False
    ordinal = kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(checked(driver.cuPointerGetAttribute(ordinal, address))[0]) == device


def _replace(driver: Any, graph: Any, node: Any, work: Work, kernel: Any) -> None:
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = kernel
    params.gridDimX = -(-work.number // (_THREADS * _STEPS))
    params.gridDimY = params.gridDimZ = 1
    params.blockDimX, params.blockDimY, params.blockDimZ = _THREADS, 1, 1
    types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
    params.kernelParams = ((work.to, work.what, work.number), types)
    before = _neighbours(driver, "cuGraphNodeGetDependencies", node)
    after = _neighbours(driver, "cuGraphNodeGetDependentNodes", node)
    new = checked(driver.cuGraphAddKernelNode(graph, before, len(before), params))[0]
    if after:
        add = _newest(driver, "cuGraphAddDependencies")
        checked(add(graph, [new] * len(after), after, None, len(after)))
    checked(driver.cuGraphDestroyNode(node))


def _neighbours(driver: Any, name: str, node: Any) -> list[Any]:
    query = _newest(driver, name)
    count = checked(query(node, 0))[-1]
    neighbours: list[Any] = checked(query(node, count))[0] if count else []
    return neighbours


def _newest(driver: Any, name: str) -> Any:
    """The form with data of edges: its name ends in ``_v2`` up to CUDA 12."""
    return getattr(driver, f"{name}_v2", None) or getattr(driver, name)


@cache
def _kernels(device: int) -> dict[str, Any] | None:
    """Loaded once for each device, into its current context, and kept; None if they cannot be."""
    driver = importlib.import_module("cuda.bindings.driver")
    try:
        module = checked(driver.cuModuleLoadData(ptx().encode() + b"\0"))[0]
        return {
            name: checked(driver.cuModuleGetFunction(module, f"ostinato_{name}".encode()))[0]
            for name in ("fill", "copy_4", "copy_16")
        }
    except RuntimeError as error:
        _log.warning("fills and copies stay in recordings of device %d: %s", device, error)
        return None


def ptx() -> str:
    """The three kernels; the driver compiles them for its card."""
    entries = (
        _entry("fill", 4, "", ".u32", "%value"),
        _entry("copy_4", 4, ".u32", ".u32", "%x{i}"),
        _entry("copy_16", 16, ".v4.u32", ".v4.u32", "{{%x{i}, %y{i}, %z{i}, %w{i}}}"),
    )
    return "\n".join((".version 7.0", ".target sm_80", ".address_size 64", *entries))


def _entry(name: str, unit: int, load: str, store: str, registers: str) -> str:
    """A kernel over units of ``unit`` bytes: first all loads, if there are any, then all stores.

    ``what`` is the address of the source, or the value.
    """
    lines = [
        f".visible .entry ostinato_{name}(.param .u64 to, .param .u64 what, .param .u32 number)",
        "{",
        f".reg .pred %is_in<{_STEPS}>;",
        ".reg .b32 %at, %block, %thread, %number, %value;",
        f".reg .b32 %x<{_STEPS}>, %y<{_STEPS}>, %z<{_STEPS}>, %w<{_STEPS}>;",
        f".reg .b64 %offset, %to, %what, %source, %a<{_STEPS}>, %b<{_STEPS}>;",
        "mov.u32 %block, %ctaid.x;",
        "mov.u32 %thread, %tid.x;",
        f"mad.lo.u32 %at, %block, {_THREADS * _STEPS}, %thread;",
        "ld.param.u32 %number, [number];",
        "ld.param.u64 %to, [to];",
        "ld.param.u64 %what, [what];",
        "cvta.to.global.u64 %to, %to;",
        "cvta.to.global.u64 %source, %what;" if load else "cvt.u32.u64 %value, %what;",
    ]
    for i in range(_STEPS):
        lines += [
            f"setp.lt.u32 %is_in{i}, %at, %number;",
            f"mul.wide.u32 %offset, %at, {unit};",
            f"add.u64 %a{i}, %to, %offset;",
            f"add.u32 %at, %at, {_THREADS};",
        ]
        if load:
            lines += [
                f"add.u64 %b{i}, %source, %offset;",
                f"@%is_in{i} ld.global{load} {registers.format(i=i)}, [%b{i}];",
            ]
    lines += [
        f"@%is_in{i} st.global{store} [%a{i}], {registers.format(i=i)};" for i in range(_STEPS)
    ]
    return "\n".join((*lines, "ret;", "}"))
