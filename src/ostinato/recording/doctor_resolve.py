"""Finds a callable by ``package.module:callable``, and example calls beside it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ostinato.errors import ConfigError

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Resolved(NamedTuple):
    """A callable with at least one example call, as ``examine(fn, calls)`` takes them."""

    fn: Callable[..., Any]
    calls: Sequence[Call]


def resolve(target: str) -> Resolved:
    """The callable that ``"package.module:callable"`` names, with its examples.

    Examples come from ``<callable>_example()`` or ``example_inputs()`` in the same module: see
    ``calls_of``. Raises ``ConfigError`` that names what is missing.
    """
    module, found, name = _find(target)
    return Resolved(found, _examples(target, module, name))


def find_callable(target: str) -> Callable[..., Any]:
    """The callable alone. Raises ``ConfigError``."""
    return _find(target)[1]


def _find(target: str) -> tuple[Any, Callable[..., Any], str]:
    """Module, callable, and the last part of its name."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ConfigError(f"{target!r}: expected package.module:callable")
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{target!r}: {error}") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{target!r}: {module_name} cannot be imported: {reason}") from error
    found = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{target!r}: {module_name} has no {path}")
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(f"{target!r} is a {type(found).__qualname__}; expected a callable")
    return module, found, path.rpartition(".")[2]


def _examples(target: str, module: Any, name: str) -> list[Call]:
    for maker in (f"{name}_example", "example_inputs"):
        make = getattr(module, maker, None)
        if callable(make):
            return calls_of(make, f"{module.__name__}.{maker}()")
    raise ConfigError(
        f"{target!r} has no example call; expected a function {name}_example() or example_inputs() "
        f"in {module.__name__} that returns the inputs"
    )


def calls_of(make: Callable[[], Any], maker: str) -> list[Call]:
    """Example calls as ``make`` returns them: a tuple of arguments, a mapping of keyword
    arguments, both as ``(args, kwargs)``, one value, or a list of such. Raises ``ConfigError``,
    which calls it ``maker``, for an error in it and an empty list.
    """
    try:
        made = make()
    except Exception as error:
        raise ConfigError(f"{maker} raised {type(error).__name__}: {error}") from error
    calls = [_call_of(one) for one in made] if isinstance(made, list) else [_call_of(made)]
    if not calls:
        raise ConfigError(f"{maker} returned an empty list; expected at least one call's inputs")
    return calls


def _call_of(made: Any) -> Call:
    match made:
        case (tuple() | list() as args, dict() as kwargs):
            return tuple(args), kwargs
        case Mapping():
            return (), dict(made)
        case tuple():
            return made, {}
    return (made,), {}
