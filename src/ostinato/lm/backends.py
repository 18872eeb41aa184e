"""How prefill is recorded: whole, cut at its attention, as a traced graph, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from torch import Tensor

from ostinato.errors import ConfigError
from ostinato.lm.apart import attend_apart
from ostinato.lm.models.qwen import Qwen

Name = Literal["full", "breakable", "tc_piecewise", "disabled"]
Compiler = Literal["eager", "inductor"]
NAMES: tuple[Name, ...] = get_args(Name)
COMPILERS: tuple[Compiler, ...] = get_args(Compiler)


@dataclass(frozen=True)
class PrefillBackend:
    """``forward``: the model's, called in another way; ``None`` is the plain one.

    ``full``: a recording for each rung. ``breakable``: the attention of each layer is called
    directly between the pieces of a recording. ``tc_piecewise``: so it is, and the pieces come from
    one symbolic trace for all rungs. ``disabled``: every prefill is a direct call.
    """

    name: Name
    forward: Callable[..., Tensor] | None = None


FULL = PrefillBackend("full")


def make_backend(
    name: Name, model: Qwen, *, num_sequences: int, num_levels: int, compiler: Compiler = "eager"
) -> PrefillBackend:
    """``num_sequences``: of one prefill; ``num_levels``: DeepStack levels of media.

    Raises ``ConfigError`` for an unknown name, and ``RecordingRefused`` with the place where the
    decoder cannot be traced.
    """
    if name not in NAMES:
        raise ConfigError(f"prefill_backend is {name!r}; expected one of {', '.join(NAMES)}")
    if compiler not in COMPILERS:
        raise ConfigError(
            f"prefill_compiler is {compiler!r}; expected one of {', '.join(COMPILERS)}"
        )
    if name == "breakable":
        return PrefillBackend(name, partial(model, attend=attend_apart))
    if name == "tc_piecewise":
        from ostinato.lm.traced import Traced  # imports the tracer, which takes seconds

        traced = Traced(
            model, num_sequences=num_sequences, num_levels=num_levels, compiler=compiler
        )
        return PrefillBackend(name, traced)
    return PrefillBackend(name)
