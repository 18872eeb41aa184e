"""``ostinato bench kernels``: each operator against its eager chain, attention by backend.

Rates are set against the machine's own ceilings, measured in the same run. A row that cannot be
measured says why and the others go on. It compares no answers: ``bench/kernels_gpu_check.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ostinato.bench.attention_shapes import SHAPES, AttentionShape
from ostinato.bench.timing import (
    Clock,
    copies_of,
    copy_bandwidth,
    device_seconds_per_call,
    product_speed,
    rotated,
)
from ostinato.errors import DeviceError
from ostinato.kernels.segment_attention import availability
from ostinato.kernels.segment_attention.backends import BACKENDS
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.workloads import Workload, workloads

ROWS = 16_384
_MAX_MASK_ROWS = 1024
_slow_launches: Clock = partial(device_seconds_per_call, num_calls=8)
"""Some attention backends take a tenth of a millisecond to launch."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine reaches: bytes per second of a copy, operations per second of a product."""

    copy_bytes_per_s: float
    product_flops_per_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One call. ``microseconds`` by who computes it; a missing time has a reason in ``failed``.

    ``percent`` is the share of ``ceiling`` (``copy`` or ``product``) that the fastest of our own
    reaches, ``rate`` what that is in GB/s or TFLOP/s. What moves bytes has a ``copy`` of as many
    bytes among its times, which pays for a launch as it does; ``percent_of_like`` is the share of
    that one's rate.
    """

    operator: str
    shape: str
    microseconds: dict[str, float]
    rate: float | None
    percent: float | None
    ceiling: str
    failed: dict[str, str] = field(default_factory=dict)
    percent_of_like: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, with the ceilings they are held against."""

    device: str
    torch: str
    ceilings: Ceilings
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_kernels(
    only: str | None = None,
    *,
    is_compiled: bool = False,
    hide: Iterable[str] = (),
    show: Callable[[Row], None] = lambda row: None,
) -> Report:
    """Time operators and attention whose name contains ``only``, in bfloat16.

    ``is_compiled``: ``torch.compile`` of the eager chain as well (seconds each). ``hide``:
    attention backends to leave out. ``show`` gets each row when it is there. Raises
    ``DeviceError`` where there is no NVIDIA GPU.
    """
    if not torch.cuda.is_available():
        raise DeviceError(
            "bench kernels measures device time and needs an NVIDIA GPU; torch sees none"
        )
    ceilings = Ceilings(copy_bandwidth(), product_speed(torch.bfloat16))
    rows = []
    with availability.hiding(*hide), torch.inference_mode():
        for row in all_rows(only, ceilings, is_compiled=is_compiled):
            show(row)
            rows.append(row)
    return Report(torch.cuda.get_device_name(), torch.__version__, ceilings, tuple(rows))


def all_rows(only: str | None, ceilings: Ceilings, *, is_compiled: bool) -> Iterator[Row]:
    """Operators, then attention."""
    for workload in workloads(rows=ROWS, dtype=torch.bfloat16, device="cuda"):
        if only is None or only in workload.operator.name:
            yield operator_row(workload, ceilings, is_compiled=is_compiled)
    if only is None or only in "segment_attention":
        for shape in SHAPES:
            yield attention_row(shape, shape.call(torch.bfloat16, "cuda"), ceilings)


def operator_row(
    workload: Workload,
    ceilings: Ceilings,
    *,
    is_compiled: bool = False,
    clock: Clock = device_seconds_per_call,
) -> Row:
    """The kernel, its eager chain, and what ``torch.compile`` makes of the chain."""
    operator, sets = workload.operator, rotated(workload)
    ways = {"fused": operator.kernel, "eager": operator.reference}
    if is_compiled:
        ways["compile"] = torch.compile(operator.reference, dynamic=False)
    calls: dict[str, list[Callable[[], object]]] = {
        name: [lambda a=a, fn=fn: fn(*a) for a in sets]  # type: ignore[misc]
        for name, fn in ways.items()
    }
    flops = _product_flops(workload)
    if flops:
        amount, top, ceiling = flops, ceilings.product_flops_per_s, "product"
    else:
        amount, top, ceiling = workload.num_bytes(), ceilings.copy_bytes_per_s, "copy"
        calls["copy"] = copies_of(amount, device=_device_of(sets[0]))
    seconds, failed = _timed(calls, clock)
    own = seconds.get("fused")
    row = _row(operator.name, workload.label, seconds, failed, own, amount, top, ceiling)
    if own is None or "copy" not in seconds:
        return row
    return replace(row, percent_of_like=round(100 * seconds["copy"] / own, 1))


def _device_of(args: tuple[Any, ...]) -> str:
    return next(a.device.type for a in args if isinstance(a, torch.Tensor))


def attention_row(
    shape: AttentionShape,
    call: Call,
    ceilings: Ceilings,
    *,
    clock: Clock = _slow_launches,
) -> Row:
    """Every backend that this machine has for the call; the rate is the fastest one's."""
    seconds, failed = _timed(
        {b.name: [lambda b=b: b.attend(call, None)] for b in usable(call)},  # type: ignore[misc]
        clock,
    )
    return _row(
        "segment_attention",
        f"{shape.name}, {shape.heads}x{shape.head_dim}",
        seconds,
        failed,
        min(seconds.values(), default=None),
        shape.flops,
        ceilings.product_flops_per_s,
        "product",
    )


def usable(call: Call) -> list[Backend]:
    """Backends that fit the call and are there; dense masks only where they are small."""
    return [
        backend
        for backend in BACKENDS.values()
        if not backend.misfit(call)
        and not availability.absence(backend, call.q.device)
        and (backend.name != "masked" or call.q.shape[0] <= _MAX_MASK_ROWS)
    ]


def _timed(
    ways: dict[str, list[Callable[[], object]]], clock: Clock
) -> tuple[dict[str, float], dict[str, str]]:
    seconds, failed = {}, {}
    for name, calls in ways.items():
        try:
            seconds[name] = clock(calls)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return seconds, failed


def _row(
    operator: str,
    shape: str,
    seconds: dict[str, float],
    failed: dict[str, str],
    own: float | None,
    amount: float,
    top: float,
    ceiling: str,
) -> Row:
    unit = 1e9 if ceiling == "copy" else 1e12
    return Row(
        operator,
        shape,
        {name: round(s * 1e6, 1) for name, s in seconds.items()},
        None if own is None else round(amount / own / unit, 1),
        None if own is None else round(100 * amount / own / top, 1),
        ceiling,
        failed,
    )


def _product_flops(workload: Workload) -> int:
    """Operations of a matrix product (x, weight, ...); 0 for what only moves bytes."""
    if not workload.operator.name.startswith("linear"):
        return 0
    x, weight = workload.args[:2]
    return int(2 * x.numel() * weight.shape[0])
