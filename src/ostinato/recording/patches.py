"""Functions that no torch mode sees, replaced for as long as an observer looks at its own thread.

Replacement is process-wide and counted, so observers of several threads can overlap; a call from a
thread without an observer goes straight to the original.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Patch:
    """``owner.attribute`` breaks ``rule``; ``instead`` makes the result when it is only collected.

    ``triggers`` narrows the breach to some arguments; ``opaque`` calls are allowed inside an
    operator.
    """

    owner: str
    attribute: str
    rule: str
    instead: Callable[[], Any] | None = None
    triggers: Callable[..., bool] | None = None
    opaque: bool = False

    @property
    def name(self) -> str:
        return f"{self.owner.replace(':', '.')}.{self.attribute}"


def _nothing() -> None:
    return None


PATCHES = (
    Patch("torch.cuda", "synchronize", "device-wait", _nothing),
    Patch("torch.cuda:Stream", "synchronize", "device-wait", _nothing),
    Patch("torch.cuda:Event", "synchronize", "device-wait", _nothing),
    Patch("torch.accelerator", "synchronize", "device-wait", _nothing),
    Patch("torch.cuda", "stream", "stream", contextlib.nullcontext),
    Patch("torch.cuda", "set_stream", "stream", _nothing),
    Patch("torch.cuda:Stream", "__enter__", "stream"),
    Patch("torch.cuda:Stream", "wait_stream", "stream", _nothing),
    Patch("torch.cuda:Stream", "wait_event", "stream", _nothing),
    Patch("torch.cuda:Stream", "record_event", "stream"),
    Patch("torch.cuda:Event", "record", "stream", _nothing),
    Patch("torch.cuda:Event", "wait", "stream", _nothing),
    Patch("torch", "manual_seed", "reseed"),
    Patch("torch.random", "manual_seed", "reseed"),
    Patch("torch", "set_rng_state", "reseed"),
    Patch("torch.random", "set_rng_state", "reseed"),
    Patch("torch:Tensor", "_reduce_ex_internal", "host-read"),
    Patch("torch.cuda", "empty_cache", "allocator", _nothing),
    Patch("gc", "collect", "allocator", _nothing),
    Patch("threading:Thread", "start", "thread"),
    Patch("torch", "to_dlpack", "export"),
    Patch("torch.utils.dlpack", "to_dlpack", "export"),
    Patch("torch", "from_numpy", "baked-data"),
    Patch("torch", "frombuffer", "baked-data"),
    Patch("torch", "compile", "compiled-frame", opaque=True),
    Patch(
        "torch._dynamo.eval_frame",
        "_maybe_set_eval_frame",
        "compiled-frame",
        _nothing,
        triggers=lambda callback, *_: callable(callback),
        opaque=True,
    ),
    Patch("triton.runtime.jit:JITFunction", "run", "triton-launch", _nothing, opaque=True),
)

_LAZY = ("torch._dynamo.eval_frame", "triton.runtime.jit")
_lock = threading.Lock()
_watching = threading.local()
_installed: list[tuple[Any, str, Any, Any]] = []
_num_watchers = 0


@contextlib.contextmanager
def watching(report: Callable[[Patch], bool]) -> Iterator[None]:
    """Report calls of patched functions made by this thread. ``report`` may raise.

    It returns True if the original must not run.
    """
    former = getattr(_watching, "report", None)
    _enter()
    _watching.report = report
    try:
        yield
    finally:
        _watching.report = former
        _leave()


def _enter() -> None:
    global _num_watchers
    with _lock:
        _num_watchers += 1
        if _num_watchers == 1:
            for patch in PATCHES:
                _install(patch)


def _leave() -> None:
    global _num_watchers
    with _lock:
        _num_watchers -= 1
        if _num_watchers == 0:
            while _installed:
                owner, attribute, original, wrapper = _installed.pop()
                if original is None:
                    delattr(owner, attribute)  # it was, and is again, inherited
                elif getattr(owner, attribute) is wrapper:
                    setattr(owner, attribute, original)


def _install(patch: Patch) -> None:
    owner = _owner(patch.owner)
    original = getattr(owner, patch.attribute, None)
    if original is None:
        return
    is_own = patch.attribute in vars(owner)
    wrapper = _wrapper(patch, original)
    try:
        setattr(owner, patch.attribute, wrapper)
    except TypeError:
        return  # a type written in C
    _installed.append((owner, patch.attribute, original if is_own else None, wrapper))


def _owner(path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    if module_name in _LAZY:
        module = sys.modules.get(module_name)
    else:
        module = importlib.import_module(module_name)
    return getattr(module, class_name, None) if class_name else module


def _wrapper(patch: Patch, original: Any) -> Any:
    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        report = getattr(_watching, "report", None)
        if report is None or (patch.triggers is not None and not patch.triggers(*args, **kwargs)):
            return original(*args, **kwargs)
        skip = report(patch)
        if skip and patch.instead is not None:
            return patch.instead()
        return original(*args, **kwargs)

    return replacement
