"""Which backends this machine has: allow-list by card, installed package, then a probe run.

A probe compares a backend with the reference on small, awkward segmentations, once for each device,
dtype and head size, and never while recording. A backend that fails is out, and says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ostinato import state
from ostinato.kernels.bounds import FP32_EPS
from ostinato.kernels.card import capability_of
from ostinato.kernels.examples import values
from ostinato.kernels.gate import first_wrong_answer
from ostinato.kernels.op import Operator
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.segment_attention.reference import segment_attention_reference

_SEVERAL = (5, 0, 64, 1, 130, 33, 0)
_log = logging.getLogger(__name__)
_hidden: frozenset[str] = frozenset()
_verdicts: dict[tuple[object, ...], str] = {}


@contextmanager
def hiding(*names: str) -> Iterator[None]:
    """Do as if the named backends were not there, in the whole process, inside the ``with`` block.

    Recordings made before are other ones then, and again afterwards.
    """
    global _hidden
    before = _hidden
    _hidden = before | set(names)
    state.verdicts.changed()
    try:
        yield
    finally:
        _hidden = before
        state.verdicts.changed()


def hidden() -> frozenset[str]:
    """Names of the backends that are hidden at present."""
    return _hidden


def absence(backend: Backend, device: torch.device) -> str:
    """Why the backend is not there at all, or "": hidden, not for this card, not installed."""
    if backend.name in _hidden:
        return "is hidden"
    capability = capability_of(device)
    if backend.capabilities is not None and capability not in backend.capabilities:
        return f"has no kernels known to work on compute capability {capability}"
    if backend.module is not None and find_spec(backend.module) is None:
        return f"needs the package {backend.package}"
    return ""


def label(backend: Backend) -> str:
    """Its name, with the version of its package: another version is another variant to time."""
    if backend.package is None:
        return backend.name
    try:
        return f"{backend.name} {version(backend.package)}"
    except PackageNotFoundError:
        return backend.name


def failure(backend: Backend, call: Call) -> str | None:
    """Why the backend may not serve calls like this, "" if it may, ``None`` if nothing is known.

    Nothing is found out while recording.
    """
    if not backend.is_probed:
        return ""
    key = _probe_key(backend, call)
    if key not in _verdicts:
        if is_recording(call):
            return None
        _verdicts[key] = _probe(backend, call)
        if _verdicts[key]:
            _log.warning(
                "attention backend %s is out for %s: %s", backend.name, key[1:], _verdicts[key]
            )
    return _verdicts[key]


def refuse(backend: Backend, call: Call, reason: str) -> None:
    """Keep a backend out that has failed in service."""
    _log.warning("attention backend %s is out: %s", backend.name, reason)
    _verdicts[_probe_key(backend, call)] = reason


def forget_probes() -> None:
    """Probe anew at the next calls."""
    _verdicts.clear()


def is_recording(call: Call) -> bool:
    """While recording, by us or by anyone, nothing may be probed or timed."""
    return state.is_recording() or (call.q.is_cuda and torch.cuda.is_current_stream_capturing())


def _probe_key(backend: Backend, call: Call) -> tuple[object, ...]:
    q = call.q
    return (backend.name, q.device, q.dtype, q.shape[2], call.num_segments == 1)


# -- the probe ------------------------------------------------------------------------------------


def _probe(backend: Backend, call: Call) -> str:
    try:
        return first_wrong_answer(as_operator(backend), tuple(call))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return f"it raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def as_operator(backend: Backend) -> Operator:
    """The backend as the gate's comparison takes it."""

    def reference(
        q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, scale: float
    ) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        segment_attention_reference(q, k, v, offsets, max_length, scale, out)
        return out

    def kernel(*args: Any) -> Tensor:
        """Into memory full of NaN, so that a row that is not written shows."""
        call = Call(*args)
        out = torch.full_like(call.q, torch.nan, memory_format=torch.contiguous_format)
        return backend.attend(call, out)

    return Operator(
        name=f"segment_attention by {backend.name}",
        reference=reference,
        kernel=kernel,
        exactness="close",
        tolerance=tolerance,
        examples=probes,
    )


def tolerance(expected: Sequence[Tensor], args: tuple[Any, ...]) -> list[Tensor]:
    """Three units of the largest finite value: weights are rounded once, the result once."""
    finite = torch.nan_to_num(args[2].float(), nan=0.0, posinf=0.0, neginf=0.0)
    unit = 3 * torch.finfo(args[0].dtype).eps + 64 * FP32_EPS
    return [unit * finite.abs().max().expand(expected[0].shape)]


def probes(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Views of one projection, segments of 0, 1 and odd lengths, bounds loose and tight.

    In the fifth a whole segment is NaN; it must show there and nowhere else. Then heads stand
    apart, as ``rope`` can leave them, with NaN between them.
    """
    q, offsets, scale = args[0], args[3], args[5]
    _, heads, head_dim = q.shape
    lengths = _SEVERAL if offsets.shape[0] > 2 else (197,)
    ends = torch.tensor(lengths, device=q.device).cumsum(0)
    own = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
    rows = sum(lengths)
    for number, size in enumerate((1.0, 6.0, 1e-3, 0.0, 1.0)):
        qkv = values("normal", (rows, 3, heads, head_dim), q, seed=number)
        qkv[:, 0] *= size
        if number == 4 and len(lengths) > 1:
            qkv[70:200] = torch.nan
        yield (*qkv.unbind(1), own, rows if number % 2 else max(lengths), scale)
    apart = q.new_full((3, rows, heads, 2 * head_dim), torch.nan)[..., :head_dim]
    apart.copy_(values("normal", (3, rows, heads, head_dim), q, seed=5))
    yield (*apart.unbind(0), own, max(lengths), scale)
