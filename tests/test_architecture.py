"""Rules of the layout that the import contracts cannot express, read from the source itself."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import ostinato

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ostinato"

ENVIRONMENT = {"environ", "environb", "getenv", "putenv", "unsetenv"}
CUDA_GRAPH_NAMES = {
    "CUDAGraph",
    "CUDAPluggableAllocator",
    "MemPool",
    "graph_pool_handle",
    "make_graphed_callables",
    "use_mem_pool",
    "capture_begin",
    "capture_end",
    "cudaStreamBeginCapture",
    "cudaGraphInstantiate",
    "cuStreamBeginCapture",
    "cuGraphInstantiate",
}
HUB = {"transformers", "huggingface_hub"}
HUB_FILES = ("weights/*", "vision/preprocess*.py", "vision/preprocess/*")


def sources(root: Path = PACKAGE) -> list[tuple[str, ast.Module]]:
    """Every file below the package, by path relative to it, parsed."""
    return [
        (path.relative_to(root).as_posix(), ast.parse(path.read_text(), str(path)))
        for path in sorted(root.rglob("*.py"))
    ]


def imported(node: ast.AST) -> list[str]:
    """Full names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def environment_uses(tree: ast.AST) -> Iterator[int]:
    """Lines that read or write the environment, however it was imported."""
    aliases = {"os"} | {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "os" and alias.asname
    }
    for node in ast.walk(tree):
        is_attribute = (
            isinstance(node, ast.Attribute)
            and node.attr in ENVIRONMENT
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        )
        is_import = isinstance(node, ast.ImportFrom) and any(
            name.partition(".")[2] in ENVIRONMENT
            for name in imported(node)
            if name.startswith("os.")
        )
        if is_attribute or is_import:
            yield node.lineno


def cuda_graph_uses(tree: ast.AST) -> Iterator[int]:
    """Lines of code (not of text) that name a CUDA graph class, a pool or a capture call."""
    for node in ast.walk(tree):
        names = [name.rpartition(".")[2] for name in imported(node)]
        is_graph_class = "torch.cuda.graph" in imported(node)
        if isinstance(node, ast.Attribute):
            # torch.cuda.graph is a class too, and too short a name to ban on its own
            is_graph_class = node.attr == "graph" and ast.unparse(node.value).endswith("cuda")
            names = [node.attr]
        elif isinstance(node, ast.Name):
            names = [node.id]
        if is_graph_class or CUDA_GRAPH_NAMES.intersection(names):
            yield getattr(node, "lineno", 0)


def hub_imports(tree: ast.AST, *, is_inside: bool = False) -> Iterator[tuple[int, bool]]:
    """Line of each transformers or hub import, and whether it stands inside a function."""
    for node in ast.iter_child_nodes(tree):
        if any(name.partition(".")[0] in HUB for name in imported(node)):
            yield node.lineno, is_inside
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        # what only a type checker reads is not imported
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        yield from hub_imports(node, is_inside=is_inside or is_function or is_for_types)


def test_environment_is_read_in_one_file() -> None:
    users = {path for path, tree in sources() if list(environment_uses(tree))}
    assert users == {"cli/config.py"}


def test_cuda_graph_classes_are_named_in_recording_cuda_only() -> None:
    users = {path for path, tree in sources() if list(cuda_graph_uses(tree))}
    assert {path for path in users if not fnmatch(path, "recording/cuda*.py")} == set()


def test_transformers_and_hub_only_where_allowed_and_inside_functions() -> None:
    wrong = [
        f"{path}:{line}"
        for path, tree in sources()
        for line, is_inside in hub_imports(tree)
        if not is_inside or not any(fnmatch(path, pattern) for pattern in HUB_FILES)
    ]
    assert wrong == []


def test_public_names_of_the_root_are_used_by_callers_only() -> None:
    """Inside the library a file imports the module it means, so that layers stay visible."""
    packages = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
    wrong = []
    for path, tree in sources():
        if path == "__init__.py" or path.startswith(("cli/", "bench/")):
            continue
        for node in ast.walk(tree):
            for name in imported(node):
                parts = name.split(".")
                if parts[0] == "ostinato" and (len(parts) == 1 or parts[1] not in packages):
                    wrong.append(f"{path}:{node.lineno} {name}")
    assert wrong == []


def family_of(path: str) -> tuple[str, str] | None:
    """``("policy", "flux3_action")`` for a file of a policy family, else ``None``."""
    parts = Path(path).parts
    if len(parts) > 2 and parts[0] == "policy" and parts[1] != "models":
        return parts[0], parts[1]
    return None


def test_one_policy_family_does_not_import_another() -> None:
    trees = sources()
    families = {family for path, _ in trees if (family := family_of(path))}
    wrong = []
    for path, tree in trees:
        own = family_of(path)
        if own is None:
            continue
        others = {f"ostinato.{kind}.{name}" for kind, name in families - {own}}
        for node in ast.walk(tree):
            for name in imported(node):
                if any(name == other or name.startswith(f"{other}.") for other in others):
                    wrong.append(f"{path}:{node.lineno} {name}")
    assert wrong == []


def test_no_public_name_equals_a_subpackage() -> None:
    subpackages = {module.name for module in pkgutil.iter_modules(ostinato.__path__)}
    assert set(getattr(ostinato, "__all__", ())) & subpackages == set()


@pytest.mark.parametrize(
    ("source", "find", "lines"),
    [
        ("import os\nos.environ['A']", environment_uses, [2]),
        ("import os as o\no.getenv('A')", environment_uses, [2]),
        ("from os import environ", environment_uses, [1]),
        ("from os import path\nx.environ", environment_uses, []),
        ("import torch\ntorch.cuda.CUDAGraph()", cuda_graph_uses, [2]),
        ("with torch.cuda.graph(g): pass", cuda_graph_uses, [1]),
        ("from torch.cuda import MemPool", cuda_graph_uses, [1]),
        ("from torch.cuda import graph", cuda_graph_uses, [1]),
        ("'''CUDAGraph'''\nostinato.graph(f)", cuda_graph_uses, []),
        ("import transformers.models", hub_imports, [(1, False)]),
        ("def f():\n    from huggingface_hub import x", hub_imports, [(2, True)]),
        ("if TYPE_CHECKING:\n    import transformers", hub_imports, [(2, True)]),
    ],
)
def test_the_searches_find_what_they_look_for(source: str, find, lines) -> None:  # type: ignore[no-untyped-def]
    assert list(find(ast.parse(source))) == lines


IMPORT_EVERYTHING = """
import importlib, os, pkgutil, sys, types
import torch, numpy, typer, rich, fastapi, uvicorn, prometheus_client, pydantic, PIL.Image
{preload}
HOME = {home!r}

def refuse(what):
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename == os.getenv.__code__.co_filename:
        frame = frame.f_back
    if frame and frame.f_code.co_filename.startswith(HOME):
        raise RuntimeError(f"{{what}} at import: {{frame.f_code.co_filename}}:{{frame.f_lineno}}")

real = os.environ
class Environment(type(real)):
    def __init__(self): self.__dict__.update(real.__dict__)
    def __getitem__(self, key): refuse("os.environ"); return super().__getitem__(key)
    def get(self, key, default=None): refuse("os.environ"); return super().get(key, default)
    def __contains__(self, key): refuse("os.environ"); return super().__contains__(key)
    def __iter__(self): refuse("os.environ"); return super().__iter__()
    def __setitem__(self, key, value): refuse("os.environ"); super().__setitem__(key, value)
os.environ = Environment()

def guarded(function):
    def call(*args, **kwargs):
        refuse(f"torch.cuda.{{function.__name__}}")
        return function(*args, **kwargs)
    return call
for name, value in list(vars(torch.cuda).items()):
    if isinstance(value, types.FunctionType) and not name.startswith("_"):
        setattr(torch.cuda, name, guarded(value))
def no_start():
    raise RuntimeError("the GPU was started at import")
torch.cuda._lazy_init = no_start

import {package}
count = 0
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(module.name)
    count += 1
print(count)
"""


def import_everything(package: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Import each module in a process where the environment and torch.cuda raise."""
    preload = "import warnings; warnings.simplefilter('ignore')"
    script = IMPORT_EVERYTHING.format(package=package, home=str(home), preload=preload)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(home)!r})\n{script}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_import_touches_neither_environment_nor_gpu() -> None:
    done = import_everything("ostinato", ROOT / "src")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(sources()) - 1  # every file but the root


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("import os; os.environ.get('A')", "os.environ at import"),
        ("import os; os.getenv('A')", "os.environ at import"),
        ("import torch; torch.cuda.is_available()", "torch.cuda.is_available at import"),
        ("import torch; torch.cuda._lazy_init()", "the GPU was started at import"),
    ],
)
def test_import_check_notices_a_touch(tmp_path: Path, line: str, complaint: str) -> None:
    package = tmp_path / "touchy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(line)
    done = import_everything("touchy", tmp_path)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_serve_imports_without_torch() -> None:
    """A robot or a gateway has no GPU stack: the root package must not import torch eagerly."""
    script = (
        "import sys, importlib, pkgutil\n"
        "sys.modules['torch'] = None\n"
        "import ostinato.serve as serve\n"
        "for m in pkgutil.walk_packages(serve.__path__, 'ostinato.serve.'):\n"
        "    importlib.import_module(m.name)\n"
        "print(sys.modules['torch'])\n"
    )
    command = [sys.executable, "-c", script]
    path = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=path, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "None"), done.stderr
