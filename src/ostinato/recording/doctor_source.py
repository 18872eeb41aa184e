"""Reads the source of the functions that ran: suspicious calls, and lines that set a name.

Low confidence, good places: the scan knows no types.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import CodeType
from typing import NamedTuple

from ostinato.recording.frames import is_machinery

_METHODS = {
    "item": "item()",
    "tolist": "tolist()",
    "cpu": "cpu()",
    "numpy": "numpy()",
    "nonzero": "nonzero()",
    "data_ptr": "data_ptr()",
    "pin_memory": "pin_memory()",
    "masked_select": "masked_select()",
}
_FUNCTIONS = {
    "print": "print()",
    "torch.tensor": "torch.tensor()",
    "torch.unique": "torch.unique()",
    "torch.cuda.synchronize": "torch.cuda.synchronize()",
    "torch.compile": "torch.compile()",
}
_ADDERS = {"append", "add", "update", "extend", "insert", "pop", "clear", "setdefault"}


class Place(NamedTuple):
    detail: str
    path: str
    first_line: int
    last_line: int

    @property
    def location(self) -> str:
        return f"{self.path}:{self.first_line}"

    def covers(self, location: str) -> bool:
        path, _, line = location.rpartition(":")
        return path == self.path and self.first_line <= int(line) <= self.last_line


class Sources:
    """The parsed source of a set of code objects of the user."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self._codes = [c for c in codes if not is_machinery(c.co_filename)]

    def suspicious(self) -> Iterator[Place]:
        """Calls that are refused when they get a GPU tensor, in order of files and lines."""
        found = set()
        for path, tree in self._trees:
            for node in ast.walk(tree):
                detail = _suspicion(node)
                if detail is not None and isinstance(node, ast.Call):
                    last = node.end_lineno or node.lineno
                    found.add((path, node.lineno, last, detail))
        for path, line, last, detail in sorted(found):
            yield Place(detail, path, line, last)

    def setter_of(self, names: Iterable[str]) -> str | None:
        """The line that assigns to, or adds to, the attribute, global or container of such a name.

        The first name that is found counts.
        """
        for name in names:
            for path, tree in self._trees:
                for node in ast.walk(tree):
                    if isinstance(node, (ast.stmt, ast.Call)) and name in _names_set(node):
                        return f"{path}:{node.lineno}"
        return None

    @cached_property
    def _trees(self) -> list[tuple[str, ast.AST]]:
        trees: list[tuple[str, ast.AST]] = []
        for code in self._codes:
            try:
                lines, first = inspect.getsourcelines(code)
                source = textwrap.dedent("".join(lines))
                tree = ast.parse(source)
            except (OSError, TypeError, SyntaxError, IndentationError):
                continue  # made by exec, or a lambda inside an expression
            ast.increment_lineno(tree, first - 1)
            shift = len(lines[0]) - len(source.splitlines(keepends=True)[0])
            trees += [(code.co_filename, part) for part in _body(tree, code, shift)]
        return trees


def _body(tree: ast.AST, code: CodeType, shift: int) -> Iterator[ast.AST]:
    """The parts of a parsed statement that this code runs: not a decorator, and not the call that a
    lambda stands in. The source was moved to the left by ``shift`` columns.
    """
    if code.co_name != "<lambda>":
        for node in ast.walk(tree):
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function and node.name == code.co_name:  # type: ignore[attr-defined]
                yield from node.body  # type: ignore[attr-defined]
                return
        yield tree
        return
    starts = [(p[0], p[2]) for p in code.co_positions() if p[0] is not None and p[3]]
    begin = min(starts, default=(code.co_firstlineno, None))  # no columns: -X no_debug_ranges
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            at = (node.body.lineno, begin[1] and node.body.col_offset + shift)
            if at == begin:
                yield node.body


def _suspicion(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    name = _dotted(node.func)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if isinstance(node.func, ast.Attribute):
        return _METHODS.get(node.func.attr)
    return None


def _names_set(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value] if node.func.attr in _ADDERS else []
    else:
        targets = []
    for target in targets:
        while isinstance(target, (ast.Subscript, ast.Starred)):
            target = target.value
        if isinstance(target, ast.Attribute):
            yield target.attr
        elif isinstance(target, ast.Name):
            yield target.id


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
