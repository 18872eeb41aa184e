"""What a code object mentions: names, and the modules that it imports when it runs."""

from __future__ import annotations

import dis
import importlib.util
import opcode
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

_IMPORT = opcode.opmap["IMPORT_NAME"]


def names_of(code: types.CodeType) -> Iterator[str]:
    """Names and string constants of a code object and of the functions defined inside it."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, str):
            yield const
        elif isinstance(const, types.CodeType):
            yield from names_of(const)


def modules_imported(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[types.ModuleType]:
    """The modules that ``import`` statements in this code would find now; ``names`` are its
    globals. What has not been imported yet is found by a later survey.
    """
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from modules_imported(const, names)
    if _IMPORT not in code.co_code[::2]:
        return
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opcode != _IMPORT:
            continue
        level, wanted = steps[at - 2].argval, str(step.argval)
        if isinstance(level, int) and level > 0:
            package = str(names.get("__package__") or "")
            try:
                wanted = importlib.util.resolve_name("." * level + wanted, package)
            except ImportError:
                continue
        parts = wanted.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:end]))
            if isinstance(module, types.ModuleType):
                yield module
