"""Small fills of memory in a graph, as kernels: a memset between two kernels takes 2.3 us more than
a kernel there, and the host's launch longer (27 among 300 kernels on an H200: 415 us instead of
352, of which the host 40 instead of 5).

Libraries leave such nodes behind: cuDNN's attention and cuBLAS clear a counter before their kernel.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
from functools import cache
from typing import Any, NamedTuple

import torch

from ostinato.recording.cuda_census import checked

MAX_BYTES = 1 << 20
"""Beyond, what it costs to be no kernel counts little beside the fill itself."""
_THREADS = 128
_log = logging.getLogger(__name__)
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry ostinato_fill(.param .u64 to, .param .u32 word, .param .u32 number)
{
    .reg .pred %past;
    .reg .b32 %at, %block, %threads, %thread, %value, %words;
    .reg .b64 %base, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %at, %block, %threads, %thread;
    ld.param.u32 %words, [number];
    setp.ge.u32 %past, %at, %words;
    @%past ret;
    ld.param.u64 %base, [to];
    ld.param.u32 %value, [word];
    cvta.to.global.u64 %base, %base;
    mul.wide.u32 %offset, %at, 4;
    add.u64 %base, %base, %offset;
    st.global.u32 [%base], %value;
    ret;
}
"""


class Words(NamedTuple):
    """``number`` words of 32 bits with the value ``word`` from the address ``to`` on."""

    to: int
    word: int
    number: int


def as_words(to: int, value: int, element_size: int, width: int, height: int) -> Words | None:
    """A memset node's fill of ``width`` elements in ``height`` rows as words.

    None where it is none of few whole words in one row.
    """
    size = element_size * width
    if height != 1 or to % 4 or size % 4 or not 0 < size <= MAX_BYTES:
        return None
    element = (value & ((1 << 8 * element_size) - 1)).to_bytes(element_size, "little")
    return Words(to, int.from_bytes(element * (4 // element_size), "little"), size // 4)


def replace(raw_graph: int) -> int:
    """Make kernels of the small fills of a ``cudaGraph_t`` on the current device; how many.

    A fill that the driver lets nobody replace stays as it is, and so do those of other devices.
    """
    driver = importlib.import_module("cuda.bindings.driver")  # comes with torch's CUDA builds

    graph, device = driver.CUgraph(raw_graph), torch.cuda.current_device()
    num_nodes = checked(driver.cuGraphGetNodes(graph, 0))[-1]
    nodes = checked(driver.cuGraphGetNodes(graph, num_nodes))[0] if num_nodes else []
    memset = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
    num_replaced = 0
    for node in nodes:
        if checked(driver.cuGraphNodeGetType(node))[0] != memset:
            continue
        fill = checked(driver.cuGraphMemsetNodeGetParams(node))[0]
        words = as_words(int(fill.dst), int(fill.value), fill.elementSize, fill.width, fill.height)
        if words is None or not _is_memory_of(driver, device, words.to):
            continue
        try:
            _replace(driver, graph, node, words, _kernel(device))
        except RuntimeError as error:
            _warn_once(device, str(error))
            break
        num_replaced += 1
    return num_replaced


def _is_memory_of(driver: Any, device: int, address: int) -> bool:
    ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    failed, owner = driver.cuPointerGetAttribute(ordinal, address)
    return int(failed) == 0 and int(owner) == device


def _replace(driver: Any, graph: Any, node: Any, words: Words, kernel: Any) -> None:
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = kernel
    params.gridDimX, params.gridDimY, params.gridDimZ = -(-words.number // _THREADS), 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = _THREADS, 1, 1
    params.kernelParams = (tuple(words), (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32))
    before = _neighbours(driver, "cuGraphNodeGetDependencies", node)
    after = _neighbours(driver, "cuGraphNodeGetDependentNodes", node)
    new = checked(driver.cuGraphAddKernelNode(graph, before, len(before), params))[0]
    try:
        if after:
            add = _newest(driver, "cuGraphAddDependencies")
            checked(add(graph, [new] * len(after), after, None, len(after)))
    except RuntimeError:
        checked(driver.cuGraphDestroyNode(new))
        raise
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
def _kernel(device: int) -> Any:
    """Loaded once for each device, into its current context, and kept."""
    driver = importlib.import_module("cuda.bindings.driver")
    module = checked(driver.cuModuleLoadData(PTX.encode() + b"\0"))[0]
    return checked(driver.cuModuleGetFunction(module, b"ostinato_fill"))[0]


@cache
def _warn_once(device: int, reason: str) -> None:
    _log.warning("fills stay as they are in recordings of device %d: %s", device, reason)
