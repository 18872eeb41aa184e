"""What makes two calls the same: a closed, frozen, printable key.

Two calls with equal keys run the same operations on tensors of the same description. Everything
that can change the recorded work is a field; nothing is keyed by ``id()`` and an argument of
unknown type is an error (see ``tree.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import torch

from ostinato.recording import tree
from ostinato.recording.spec import TensorSpec


class Key(NamedTuple):
    """The whole key of one call.

    ``modes`` are the numeric switches of ``numeric_modes``; ``generation`` counts changes of the
    weights, of training flags and hooks, and of the operators' verdicts; ``addresses`` are those of
    the inputs that a region reads in place; ``repeats`` says, where one tensor is given twice,
    where each was given first (``a is b`` may be asked).
    """

    structure: tree.Structure
    specs: tuple[TensorSpec, ...]
    modes: tuple[Hashable, ...]
    generation: Hashable = 0
    addresses: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()

    def __str__(self) -> str:
        modes = ", ".join(
            f"{name}={value}"
            for name, value in zip(MODE_NAMES, self.modes, strict=True)
            if value not in (False, None)
        )
        specs = ", ".join(map(str, self.specs))
        if self.repeats:
            specs += f" (the same: {self.repeats})"
        return (
            f"[{specs}] in {describe_call(self.structure)}; {modes}; generation {self.generation}"
        )


def describe_call(structure: tree.Structure) -> str:
    """The structure of a call as it is written: ``(*, 1.5, scale=True)``."""
    positional, named = cast("tuple[tuple[tree.Structure, ...], Any]", structure)
    parts = [tree.describe(p) for p in positional]
    return "(" + ", ".join([*parts, *(f"{name}={tree.describe(v)}" for name, v in named)]) + ")"


def call_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tree.Structure, list[torch.Tensor]]:
    """The structure and the tensors of one call's arguments, in order.

    Raises ``UnkeyableArgument`` for an argument without an exact place in a key.
    """
    tensors: list[torch.Tensor] = []
    positional = tuple([tree.flatten(a, tensors) for a in args])
    if not kwargs:
        return (positional, ()), tensors
    named = tuple([(k, tree.flatten(v, tensors, f"argument {k!r}")) for k, v in kwargs.items()])
    return (positional, named), tensors


def repeats_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor the number of the first one that is the same object; () where all differ."""
    if len(tensors) < 2 or len(set(map(id, tensors))) == len(tensors):
        return ()
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(t), i) for i, t in enumerate(tensors)])


_C: Any = torch._C

NUM_OWN_MODES = 4
"""So many modes, the first ones, belong to the calling thread; the others to the process."""

MODE_NAMES = (
    "inference_mode",
    "grad_mode",
    "autocast",
    "autocast_dtype",
    "default_dtype",
    "float32_matmul",
    "float32_convolution",
    "float32_matmul_cpu",
    "fp16_reduced_precision_reduction",
    "bf16_reduced_precision_reduction",
    "fp16_accumulation",
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "deterministic",
    "deterministic_warn_only",
    "fill_uninitialized",
    "sdp_flash",
    "sdp_mem_efficient",
    "sdp_math",
    "sdp_cudnn",
    "sdp_math_reduction",
    "blas",
)


def _switch(name: str) -> Callable[[], Hashable]:
    """A getter of a private switch, or of the constant ``None`` where this torch has none."""
    getter = getattr(_C, name, None)
    if getter is None:
        return lambda: None
    return getter  # type: ignore[no-any-return]


@cache
def _switches() -> tuple[Callable[[], Hashable], ...]:
    names = (
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_accumulation",
        "_get_cudnn_enabled",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_deterministic_algorithms",
        "_get_deterministic_algorithms_warn_only",
        "_get_deterministic_fill_uninitialized_memory",
        "_get_flash_sdp_enabled",
        "_get_mem_efficient_sdp_enabled",
        "_get_math_sdp_enabled",
        "_get_cudnn_sdp_enabled",
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_get_blas_preferred_backend",
    )
    return tuple(map(_switch, names))


_PRECISIONS = (("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul"))


def _float32_modes() -> tuple[Hashable, ...]:
    """TF32 and its like. The older getters are quick, and raise once the newer API was used."""
    try:
        return (
            _C._get_cublas_allow_tf32(),
            _C._get_cudnn_allow_tf32(),
            _C._get_float32_matmul_precision(),
        )
    except RuntimeError:
        return tuple([_C._get_fp32_precision_getter(*which) for which in _PRECISIONS])


@cache
def _uncovered() -> tuple[Callable[[], Hashable], ...]:
    names = (
        "_get_cudnn_allow_tf32",
        "_get_cublas_allow_fp16_accumulation",
        "_get_cudnn_enabled",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_deterministic_fill_uninitialized_memory",
        "_get_flash_sdp_enabled",
        "_get_mem_efficient_sdp_enabled",
        "_get_math_sdp_enabled",
        "_get_cudnn_sdp_enabled",
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_get_blas_preferred_backend",
        "_get_float32_matmul_precision",
    )
    return tuple(map(_switch, names))


def uncovered_switches() -> list[Hashable]:
    """The process's switches that torch's own check of the global state leaves out."""
    try:
        return [switch() for switch in _uncovered()]
    except RuntimeError:  # the newer precision API was used: never equal, so a key is made
        return [object()]


def numeric_modes(device_type: str) -> tuple[Hashable, ...]:
    """The thread's and the process's switches that change what a call computes (``MODE_NAMES``)."""
    autocast = torch.is_autocast_enabled(device_type)
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        autocast,
        torch.get_autocast_dtype(device_type) if autocast else None,
        torch.get_default_dtype(),
        *_float32_modes(),
        *[switch() for switch in _switches()],
    )
