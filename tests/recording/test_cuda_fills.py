"""Which fills become kernels, and of which words; graphs are in ``tests/gpu/test_fills.py``."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.recording import cuda_fills
from ostinato.recording.cuda_fills import MAX_BYTES, PTX, as_words

_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@given(
    to=st.integers(0, 64),
    value=st.integers(0, 2**32 - 1),
    element_size=st.sampled_from((1, 2, 4)),
    width=st.integers(0, 70),
)
def test_words_write_what_the_fill_would(
    to: int, value: int, element_size: int, width: int
) -> None:
    words = as_words(to, value, element_size, width, 1)
    num_bytes = element_size * width
    if words is None:
        assert to % 4 or num_bytes % 4 or num_bytes == 0
        return
    element = value % (1 << 8 * element_size)
    want = np.full(width, element, _TYPES[element_size]).tobytes()
    assert np.full(words.number, words.word, np.uint32).tobytes() == want
    assert words.to == to


def test_a_fill_of_rows_stays() -> None:
    assert as_words(0, 1, 4, 8, 2) is None


def test_what_is_huge_stays() -> None:
    assert as_words(0, 0, 4, MAX_BYTES // 4, 1) is not None
    assert as_words(0, 0, 4, MAX_BYTES // 4 + 1, 1) is None


@pytest.mark.parametrize("card", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"])
def test_the_kernel_compiles(card: str, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="its compiler of PTX is used")
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    name = "ptxas-blackwell" if card == "sm_120" else "ptxas"
    source = tmp_path / "fill.ptx"
    source.write_text(PTX)
    command = [folder / name, f"-arch={card}", source, "-o", tmp_path / "fill.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- the graph itself, on a driver that only keeps books -------------------------------------------


Fill = tuple[int, int, int, int, int]


class Books:
    """As much of ``cuda.bindings.driver`` as is asked of it. Nodes are numbers; edges are pairs.

    ``is_old``: CUDA 12, where edges with data have names of their own. ``refused``: calls that
    answer with an error.
    """

    CUgraph = int
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMSET="memset")
    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL="ordinal")
    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace

    def __init__(self, is_old: bool = False, refused: str = "") -> None:
        self.kinds: dict[int, str] = {}
        self.fills: dict[int, Any] = {}
        self.launches: dict[int, Any] = {}
        self.edges: set[tuple[int, int]] = set()
        self.refused = refused
        if is_old:
            for name in ("NodeGetDependencies", "NodeGetDependentNodes", "AddDependencies"):
                setattr(self, f"cuGraph{name}_v2", getattr(self, f"cuGraph{name}"))
                setattr(self, f"cuGraph{name}", None)

    def node(
        self, kind: str, *before: int, fill: tuple[int, int, int, int, int] | None = None
    ) -> int:
        number = len(self.kinds) + 1
        self.kinds[number] = kind
        self.edges |= {(other, number) for other in before}
        if fill is not None:
            names = ("dst", "value", "elementSize", "width", "height")
            self.fills[number] = SimpleNamespace(**dict(zip(names, fill, strict=True)))
        return number

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == object.__getattribute__(self, "refused"):
            return lambda *args: (1, None, None, None)
        return object.__getattribute__(self, name)

    def cuGraphGetNodes(self, graph: int, count: int) -> Any:
        return 0, [n for n in self.kinds if self.kinds[n]], len(self.kinds)

    def cuGraphNodeGetType(self, node: int) -> Any:
        return 0, self.kinds[node]

    def cuGraphMemsetNodeGetParams(self, node: int) -> Any:
        return 0, self.fills[node]

    def cuPointerGetAttribute(self, attribute: str, address: int) -> Any:
        return 0, address >> 32

    def cuGraphNodeGetDependencies(self, node: int, count: int = 0) -> Any:
        found = sorted(a for a, b in self.edges if b == node)
        return 0, found[:count], None, len(found)

    def cuGraphNodeGetDependentNodes(self, node: int, count: int = 0) -> Any:
        found = sorted(b for a, b in self.edges if a == node)
        return 0, found[:count], None, len(found)

    def cuGraphAddKernelNode(self, graph: int, before: list[int], count: int, params: Any) -> Any:
        assert count == len(before)
        new = self.node("kernel", *before)
        self.launches[new] = params
        return 0, new

    def cuGraphAddDependencies(
        self, graph: int, start: list[int], end: list[int], data: None, count: int
    ) -> Any:
        assert count == len(start) == len(end)
        self.edges |= set(zip(start, end, strict=True))
        return (0,)

    def cuGraphDestroyNode(self, node: int) -> Any:
        self.kinds[node] = ""
        self.edges = {edge for edge in self.edges if node not in edge}
        return (0,)

    def cuModuleLoadData(self, image: bytes) -> Any:
        assert image.endswith(b"\0")
        return 0, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> Any:
        assert b".entry " + name + b"(" in PTX.encode()
        return 0, "function"


@pytest.fixture
def replacing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def with_driver(books: Books) -> int:
        monkeypatch.setattr(cuda_fills.importlib, "import_module", lambda name: books)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        return cuda_fills.replace(7)

    cuda_fills._kernel.cache_clear()
    yield with_driver
    cuda_fills._kernel.cache_clear()


def three_around(books: Books, fill: Fill) -> tuple[int, ...]:
    """Two kernels before a fill and two behind it, one of which waits for a third one, too."""
    a, b, other = (books.node("kernel") for _ in range(3))
    memset = books.node("memset", a, b, fill=fill)
    return a, b, other, memset, books.node("kernel", memset), books.node("kernel", memset, other)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_kernel_takes_the_place_of_a_fill(replacing: Any, is_old: bool) -> None:
    books = Books(is_old)
    a, b, other, memset, c, d = three_around(books, (64, 0x11, 1, 1024, 1))
    assert replacing(books) == 1
    (new,) = books.launches
    assert books.kinds[memset] == ""
    assert books.edges == {(a, new), (b, new), (new, c), (new, d), (other, d)}
    params = books.launches[new]
    assert params.kernelParams[0] == (64, 0x11111111, 256)
    assert params.gridDimX * params.blockDimX >= 256 > (params.gridDimX - 1) * params.blockDimX


def test_alone_and_several(replacing: Any) -> None:
    books = Books()
    books.node("memset", fill=(4, 0, 4, 1, 1))
    books.node("memset", fill=(8, 1, 4, 1, 1))
    books.node("memset", 1, fill=(2, 1, 1, 1, 1))  # no whole word
    books.node("memset", 1, fill=((1 << 32) + 4, 1, 4, 1, 1))  # of another device
    books.node("memcpy", 2)
    assert replacing(books) == 2
    assert [books.kinds[n] for n in range(1, 6)] == ["", "", "memset", "memset", "memcpy"]
    assert len(books.edges) == 3
    assert replacing(Books()) == 0


@pytest.mark.parametrize(
    "refused",
    [
        "cuModuleLoadData",
        "cuGraphNodeGetDependencies",
        "cuGraphNodeGetDependentNodes",
        "cuGraphAddKernelNode",
        "cuGraphAddDependencies",
    ],
)
def test_what_the_driver_refuses_leaves_the_graph_as_it_was(
    replacing: Any, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    books = Books(refused=refused)
    three_around(books, (64, 0, 4, 1, 1))
    before = set(books.edges)
    cuda_fills._warn_once.cache_clear()
    assert replacing(books) == 0
    assert replacing(books) == 0
    assert books.edges == before
    assert [kind for kind in books.kinds.values() if kind].count("kernel") == 5
    assert len(caplog.records) == 1
