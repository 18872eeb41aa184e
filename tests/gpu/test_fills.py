"""Fills in a recording: as kernels they write the same, at the same place in the order."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from ostinato.recording import cuda_fills
from ostinato.recording.cuda_census import checked
from tests.gpu.conftest import Make
from tests.gpu.regions import DEVICE, T, exactly, same

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="a tape has no graph"),
]

WORDS = 1 << 12
_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@torch.library.custom_op("ostinato_tests::fill", mutates_args=("x",))
def fill(x: T, value: int, element_size: int, first: int, width: int) -> None:
    """A memset of the driver's, on the current stream."""
    driver = importlib.import_module("cuda.bindings.driver")
    name = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}[element_size]
    to = x.data_ptr() + first * element_size
    checked(getattr(driver, name)(to, value, width, torch.cuda.current_stream().cuda_stream))


def filled(x: T, element_size: int, first: int, width: int) -> T:
    """Overwritten, read, overwritten again: each step must come between its neighbours."""
    y = x + 1
    as_elements = y.view(_DTYPES[element_size])
    fill(as_elements, 0x1234567 % (1 << 8 * element_size), element_size, first, width)
    z = y * 3
    fill(as_elements, 7, element_size, first, width)
    return z + y


def kinds(graph: torch.cuda.CUDAGraph) -> list[str]:
    runtime: Any = importlib.import_module("cuda.bindings.runtime")
    raw = graph.raw_cuda_graph()
    count = checked(runtime.cudaGraphGetNodes(raw, 0))[-1]
    nodes = checked(runtime.cudaGraphGetNodes(raw, count))[0]
    return [checked(runtime.cudaGraphNodeGetType(node))[0].name for node in nodes]


@pytest.mark.parametrize(
    ("element_size", "first", "width", "is_kernel"),
    [
        (4, 0, 1, True),
        (4, 3, 777, True),
        (2, 6, 130, True),
        (1, 4, 1024, True),
        (2, 1, 130, False),
        (1, 4, 1023, False),
    ],
)
def test_a_fill_writes_the_same(element_size: int, first: int, width: int, is_kernel: bool) -> None:
    x = torch.arange(WORDS, dtype=torch.int32, device=DEVICE)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        filled(x, element_size, first, width)
        graph.capture_begin(capture_error_mode="thread_local")
        got = filled(x, element_size, first, width)
        graph.capture_end()
    num_replaced = cuda_fills.replace(graph.raw_cuda_graph())
    assert num_replaced == (2 if is_kernel else 0)
    assert kinds(graph).count("cudaGraphNodeTypeMemset") == 2 - num_replaced
    assert kinds(graph).count("cudaGraphNodeTypeKernel") == 3 + num_replaced
    graph.instantiate()
    for seed in range(3):
        x.copy_(torch.randint(0, 1 << 20, (WORDS,), generator=torch.Generator().manual_seed(seed)))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert same(got, filled(x, element_size, first, width))


def edges(graph: torch.cuda.CUDAGraph, kind: str) -> set[tuple[str, int, int]]:
    """How many nodes the nodes of a kind wait for, and how many wait for them."""
    driver: Any = importlib.import_module("cuda.bindings.driver")
    raw = driver.CUgraph(graph.raw_cuda_graph())
    count = checked(driver.cuGraphGetNodes(raw, 0))[-1]
    found = set()
    for node in checked(driver.cuGraphGetNodes(raw, count))[0]:
        name = checked(driver.cuGraphNodeGetType(node))[0].name.rpartition("_")[2]
        sides = ("cuGraphNodeGetDependencies", "cuGraphNodeGetDependentNodes")
        before, after = (len(cuda_fills._neighbours(driver, side, node)) for side in sides)
        if name == kind:
            found.add((name, before, after))
    return found


def test_a_fill_beside_a_branch_keeps_its_place() -> None:
    """What it waits for and what waits for it are several nodes on several streams."""
    x = torch.arange(WORDS, dtype=torch.int32, device=DEVICE)
    main, aside = torch.cuda.Stream(), torch.cuda.Stream()

    def forking(x: T) -> T:
        y = x + 1
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            beside = y * 5
        main.wait_stream(aside)
        fill(y, 9, 4, 0, WORDS // 2)
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            late = y * 7
        z = y * 11
        main.wait_stream(aside)
        return z + late + beside

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(main):
        want = forking(x)
        graph.capture_begin(capture_error_mode="thread_local")
        got = forking(x)
        graph.capture_end()
        (around,) = edges(graph, "MEMSET")
        assert around[1:] == (2, 2)
        assert cuda_fills.replace(graph.raw_cuda_graph()) == 1
        assert ("KERNEL", 2, 2) in edges(graph, "KERNEL")
        graph.instantiate()
        for _ in range(5):
            got.zero_()
            graph.replay()
            assert same(got, want)


def test_a_recording_holds_no_memset(graph: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[int] = []
    original = cuda_fills.replace

    def replace(raw_graph: int) -> int:
        replaced.append(original(raw_graph))
        return replaced[-1]

    monkeypatch.setattr(cuda_fills, "replace", replace)

    def region(x: T) -> T:
        return filled(x, 4, 0, WORDS)

    graphed = graph(region)
    for seed in range(4):
        x = torch.randint(0, 1 << 20, (WORDS,), generator=torch.Generator().manual_seed(seed))
        x = x.to(DEVICE, torch.int32)
        assert same(exactly(graphed, x), region(x))
    assert replaced == [2]
