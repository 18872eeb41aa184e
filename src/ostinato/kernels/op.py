"""Registers a fused operator with ``torch.library`` and decides who computes a call.

One operator is one reference (plain torch), one fake (shapes only) and one Triton kernel. On the
CPU the reference serves; on CUDA the gate is asked, call by call, whether the kernel is proven for
that signature. Kernels are imported on first use, so importing this package loads no Triton module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch

Exactness = Literal["bit-exact", "close"]
Tolerance = Callable[..., "list[torch.Tensor]"]
"""``(expected, args) -> allowed``: per output the largest absolute difference, by element."""

NAMESPACE = "ostinato"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_registered: dict[str, Operator] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """What the gate needs to know of one fused operator.

    ``reference`` and ``kernel`` take the same positional arguments and return a tensor or a tuple
    of tensors that alias no input. ``rows`` names the tensor arguments whose first dimension counts
    rows: their row count enters a signature as a class only. ``writes`` names arguments that are
    changed in place. ``examples`` replaces the general adversarial inputs where integer arguments
    or value ranges must fit together. ``options`` are the compile options of the kernel.
    ``is_row_invariant`` promises that a row's result depends neither on other rows nor their
    number; products by a library do on their number, which who wants invariant answers fixes.
    ``largest`` is the size of the gate's huge inputs: less where the claim needs sums of
    squares that fp32 can hold (torch's own answers differ by build beyond that). ``is_timed=False``
    trusts a right kernel without timing: the reference is dense and may not fit in memory, or the
    variant was chosen by its time already.
    ``resolve`` turns a call's arguments into those that the gate sees, for operators that leave a
    choice open (a variant "auto"); ``None`` from it means that the reference serves.
    """

    name: str
    reference: Callable[..., Any]
    kernel: Callable[..., Any]
    exactness: Exactness
    tolerance: Tolerance | None = None
    rows: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    examples: Callable[[tuple[Any, ...]], Iterator[tuple[Any, ...]]] | None = None
    options: tuple[tuple[str, object], ...] = (("enable_fp_fusion", False),)
    min_capability: tuple[int, int] = (8, 0)
    is_row_invariant: bool = False
    largest: float = 1e30
    kernel_takes_out: bool = False
    is_timed: bool = True
    resolve: Callable[[tuple[Any, ...]], tuple[Any, ...] | None] | None = None
    parameters: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(inspect.signature(self.reference).parameters)
        object.__setattr__(self, "parameters", names)
        unknown = (set(self.rows) | set(self.writes)) - set(names)
        if unknown:
            raise ValueError(f"{self.name}: {sorted(unknown)} are no parameters; there are {names}")
        if (self.tolerance is None) != (self.exactness == "bit-exact"):
            raise ValueError(f"{self.name}: exactly the close operators state a tolerance")


def register(
    operator: Operator, schema: str, fake: Callable[..., Any], *, out: bool = False
) -> Callable[..., Any]:
    """Define ``ostinato::<name>`` and return the callable operator.

    ``schema`` is ``"(Tensor x, ...) -> Tensor"`` without defaults: every call passes every
    argument. With ``out=True`` the operator also gets an ``out`` overload that writes its only
    result into a given tensor of the result's shape and dtype and returns nothing.
    """
    _library.define(f"{operator.name}{schema}", tags=(torch.Tag.needs_fixed_stride_order,))
    _library.impl(operator.name, operator.reference, "CPU")
    _library.impl(operator.name, _cuda_implementation(operator), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{operator.name}", fake, lib=_library)
    _registered[operator.name] = operator
    if out:
        _register_out(operator, schema)
    packet = getattr(getattr(torch.ops, NAMESPACE), operator.name)
    return packet.default  # type: ignore[no-any-return]


def lazy_kernel(package: str, name: str) -> Callable[..., Any]:
    """``package.triton.name``, imported at its first call: nothing of Triton is loaded before."""

    module = cache(lambda: import_module(f"{package}.triton"))

    def kernel(*args: Any, **out: torch.Tensor) -> Any:
        return getattr(module(), name)(*args, **out)

    return kernel


def registered() -> tuple[Operator, ...]:
    """Every operator that has been imported so far, by name."""
    return tuple(_registered[name] for name in sorted(_registered))


def _register_out(operator: Operator, schema: str) -> None:
    arguments = schema.rpartition("->")[0].strip().removesuffix(")")
    _library.define(f"{operator.name}.out{arguments}, *, Tensor(a!) out) -> ()")
    serve = _cuda_implementation(operator)

    def on_cpu(*args: Any, out: torch.Tensor) -> None:
        _copy_into(out, operator.reference(*args), operator.name)

    def on_cuda(*args: Any, out: torch.Tensor) -> None:
        given = {"out": out} if operator.kernel_takes_out and out.is_contiguous() else {}
        _copy_into(out, serve(*args, **given), operator.name)

    def shapes_only(*args: Any, out: torch.Tensor) -> None:
        return None

    _library.impl(f"{operator.name}.out", on_cpu, "CPU")
    _library.impl(f"{operator.name}.out", on_cuda, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{operator.name}.out", shapes_only, lib=_library)


def _copy_into(out: torch.Tensor, result: torch.Tensor, name: str) -> None:
    if result is out:
        return
    if out.shape != result.shape or out.dtype != result.dtype:
        raise ValueError(
            f"{name}: out is {tuple(out.shape)} {out.dtype}, "
            f"the result is {tuple(result.shape)} {result.dtype}"
        )
    out.copy_(result)


@cache
def _gate() -> Any:
    return import_module("ostinato.kernels.gate")


def _cuda_implementation(operator: Operator) -> Callable[..., Any]:
    def implementation(*args: Any, **kwargs: Any) -> Any:
        resolved = args if operator.resolve is None else operator.resolve(args)
        if resolved is None:
            return operator.reference(*args)
        return _gate().GATE.serve(operator, resolved, **kwargs)

    return implementation
