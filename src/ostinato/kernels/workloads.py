"""One call per operator and model width: what the compile check, the GPU check and benchmarks run.

Works on any device, ``meta`` included: there only shapes matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.kernels.linear.variants import LIBRARY, PARTS, TILES, Tiling
from ostinato.kernels.op import Operator, registered
from ostinato.kernels.rowwise import ceil_div

OPERATOR_PACKAGES = (
    "fp8",
    "gate_residual",
    "gelu",
    "linear",
    "modulate",
    "neighbourhood_attention",
    "norm",
    "paged_attention",
    "paged_cache_write",
    "patch_merge",
    "penalties",
    "position_interpolation_add",
    "rope",
    "rotary_attention",
    "sampling",
    "swiglu",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A call of one operator. ``label`` names the shape in tables."""

    operator: Operator
    args: tuple[Any, ...]
    label: str

    def num_bytes(self) -> int:
        """Bytes that have to move: every input and output once, nothing for reuse."""
        outputs = self.operator.reference(*(_meta(a) for a in self.args))
        tensors = [*self.args, *(outputs if isinstance(outputs, tuple) else (outputs,))]
        return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def workloads(*, rows: int, dtype: torch.dtype, device: str) -> Iterator[Workload]:
    """Every operator at the widths of the model families, with ``rows`` rows."""
    _import_operators()
    known = {operator.name: operator for operator in registered()}
    make = _Maker(rows, dtype, device)
    groups = (
        *(_norms, _activations, _products, _ropes, _modulations),
        *(_patches, _fp8, _windows, _attentions, _samplings),
    )
    for name, label, args in (call for group in groups for call in group(make)):
        yield Workload(known[name], args, label)


def widest(every: Sequence[Workload]) -> list[Workload]:
    """The last workload of each operator, which asks most of a card."""
    return list({workload.operator.name: workload for workload in every}.values())


Calls = Iterator[tuple[str, str, tuple[Any, ...]]]


class _Maker:
    """Tensors of one device and dtype, from one generator of its own."""

    def __init__(self, rows: int, dtype: torch.dtype, device: str) -> None:
        self.rows, self.dtype, self.device = rows, dtype, device
        self._generator = torch.Generator("cpu" if device == "meta" else device)
        self._generator.manual_seed(0)

    def floats(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal values."""
        kind = dtype or self.dtype
        if self.device == "meta":
            return torch.empty(shape, dtype=kind, device="meta")
        return torch.randn(shape, dtype=kind, device=self.device, generator=self._generator)

    def steps(self, count: int, step: int) -> torch.Tensor:
        """0, step, 2 * step, ... as int32."""
        return torch.arange(count, dtype=torch.int32, device=self.device) * step

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Uniform in [0, high)."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        size = {"dtype": dtype, "device": self.device, "generator": self._generator}
        return torch.randint(high, shape, **size)  # type: ignore[call-overload,no-any-return]


def _norms(make: _Maker) -> Calls:
    for width in (256, 1152, 2048, 3072, 4096):
        x, residual = make.floats(make.rows, width), make.floats(make.rows, width)
        weight, bias = make.floats(width), make.floats(width)
        yield "layer_norm", f"{width}", (x, weight, bias, 1e-6)
        yield "add_layer_norm", f"{width}", (x, residual, weight, bias, 1e-6)
        yield "rms_norm", f"{width}", (x, weight, 1e-6)
        yield "add_rms_norm", f"{width}", (x, residual, weight, 1e-6)


def _activations(make: _Maker) -> Calls:
    for width, activation in ((4320, "gelu_tanh"), (4608, "gelu_erf"), (5120, "gelu_quick")):
        name = "gelu_erf" if activation == "gelu_erf" else "gelu"
        yield name, f"{width} {activation}", (make.floats(make.rows, width), None, activation)
    for width in (704, 3456, 9216):
        packed = make.floats(make.rows, 2 * width)
        yield "swiglu", f"2x{width} silu", (packed, None, "silu")
    packed, bias = make.floats(make.rows, 2 * 3456), make.floats(2 * 3456)
    yield "swiglu", "2x3456 silu bias", (packed, bias, "silu")


def _products(make: _Maker) -> Calls:
    """Every way to split a product, and whole ones by tiles; fp32 products are the library's."""
    if make.dtype is torch.float32:
        return
    bias = make.floats(1152)
    for name in (Tiling(*tile, splits).name for tile in TILES for splits in (1, 3)):
        x, weight = make.floats(make.rows, 1152), make.floats(1152, 1152)
        for activation in ("", "gelu_tanh", "gelu_erf"):
            yield "linear", f"1152x1152 {activation} {name}", (x, weight, bias, activation, name)
        yield from _summed(make, 4320, name)
    for parts in PARTS:
        yield from _summed(make, 4320, f"{LIBRARY}/{parts}")


def _summed(make: _Maker, inputs: int, name: str) -> Calls:
    """A projection whose parts are summed by the norm behind it."""
    x, weight = make.floats(make.rows, inputs), make.floats(1152, inputs)
    shared = (x, weight, make.floats(1152), make.floats(make.rows, 1152), make.floats(1152))
    yield "linear_add_rms_norm", f"{inputs}x1152 {name}", (*shared, 1e-6, name)
    args = (*shared, make.floats(1152), 1e-6, name)
    yield "linear_add_layer_norm", f"{inputs}x1152 {name}", args


def _ropes(make: _Maker) -> Calls:
    for heads, kv_heads, head_dim, style, kind in (
        (4, 4, 64, "half", make.dtype),
        (16, 16, 72, "half", torch.float32),
        (16, 16, 80, "half", torch.float32),
        (32, 8, 128, "half", make.dtype),
        (24, 24, 128, "adjacent", torch.float32),
    ):
        qkv = make.floats(make.rows, (heads + 2 * kv_heads) * head_dim)
        cos, sin = (make.floats(make.rows, head_dim // 2, dtype=kind) for _ in range(2))
        sizes = (heads, kv_heads, head_dim, style)
        label = f"{heads}/{kv_heads}x{head_dim} {style}"
        is_vision = head_dim in (72, 80)  # cleaned and spaced
        yield "rope", label, (qkv, cos, sin, *sizes, is_vision, is_vision)
        weight = None if head_dim == 64 else make.floats(head_dim)
        yield "norm_rope", label, (qkv, cos, sin, weight, weight, 1e-6, *sizes)


def _modulations(make: _Maker) -> Calls:
    for width in (1024, 3072):
        x, y = make.floats(make.rows, width), make.floats(make.rows, width)
        shift, scale, gate = make.floats(1, 3 * width).chunk(3, dim=1)
        yield "modulate", f"{width}", (x, scale, shift, None, 1e-6)
        yield "gate_residual", f"{width}", (x, y, gate, None, None)
        shift, scale, gate = make.floats(5, 3 * width).chunk(3, dim=1)
        segments = make.integers(5, make.rows, dtype=torch.int32)
        yield "modulate", f"{width} segments", (x, scale, shift, segments, 1e-6)
        yield "gate_residual", f"{width} segments", (x, y, gate, segments, x + y)


def _patches(make: _Maker) -> Calls:
    for width in (1152, 1280):
        x, table = make.floats(make.rows, width), make.floats(48 * 48, width)
        indices = make.integers(48 * 48, make.rows, 4)
        weights = make.floats(make.rows, 4, dtype=torch.float32)
        yield "position_interpolation_add", f"{width}", (x, table, indices, weights)
    for height, width, channels in ((136, 184, 256), (17, 23, 2048)):
        x = make.floats(1, height, width, channels)
        yield "patch_merge", f"{height}x{width}x{channels}", (x,)


def _fp8(make: _Maker) -> Calls:
    for width in (1152, 3072, 9216):
        yield "fp8_quantize", f"{width}", (make.floats(make.rows, width),)
    for width, kind in ((1152, "layer"), (4096, "rms")):
        x, residual, weight = (
            make.floats(make.rows, width),
            make.floats(make.rows, width),
            make.floats(width),
        )
        yield "fp8_norm", f"{width} {kind}", (x, weight, None, 1e-6, kind)
        yield "fp8_add_norm", f"{width} {kind}", (x, residual, weight, None, 1e-6, kind)
    x = make.floats(make.rows, 3072)
    shift, scale, _ = make.floats(5, 3 * 3072).chunk(3, dim=1)
    segments = make.integers(5, make.rows, dtype=torch.int32)
    yield "fp8_modulate", "3072 segments", (x, scale, shift, segments, 1e-6)
    yield "fp8_gelu", "4320 gelu_tanh", (make.floats(make.rows, 4320), None, "gelu_tanh")
    yield "fp8_swiglu", "2x9216 silu", (make.floats(make.rows, 2 * 9216), None, "silu")


def _windows(make: _Maker) -> Calls:
    """A few segments of 128 and of 64 rows, and many windows of 64, by heads of 72 and of 80."""
    many = make.rows // 64 * 64
    for rows, length, head_dim, members in ((256, 128, 72, 1), (256, 64, 80, 1), (many, 64, 80, 4)):
        qkv = make.floats(rows, 3 * 16 * head_dim)
        angles = make.floats(rows, head_dim // 2, dtype=torch.float32)
        tables = (angles.cos(), angles.sin())
        offsets = make.steps(rows // length + 1, length)
        args = (qkv, *tables, offsets, length, 16, head_dim**-0.5, members)
        yield "rotary_attention", f"{rows} in segments of {length}, 16x{head_dim}", args


def _attentions(make: _Maker) -> Calls:
    """Decode over 2048 keys, a prefill chunk; cache writes; windows of the video VAE's first
    stage.
    """
    page_size, kv_heads, head_dim, length = 16, 8, 128, 2048
    for batch, heads, queries, split_length in ((2, 28, 128, 0), (8, 32, 1, 256)):
        kv = kv_heads if heads % kv_heads == 0 else 4
        pages = batch * length // page_size
        caches = [make.floats(pages, page_size, kv, head_dim) for _ in range(2)]
        table = make.integers(pages, batch, length // page_size, dtype=torch.int32)
        offsets = make.steps(batch + 1, queries)
        lengths = make.steps(batch, 0) + length
        q = make.floats(batch * queries, heads, head_dim)
        label = f"{batch}x{queries} of {length}, {heads}/{kv}x{head_dim}"
        args = (q, *caches, table, offsets, lengths, queries, head_dim**-0.5, split_length)
        yield "paged_attention", label, args
    pages = ceil_div(make.rows, page_size)
    caches = [make.floats(pages, page_size, kv_heads, head_dim) for _ in "kv"]
    key, value = make.floats(make.rows, 2, kv_heads, head_dim).unbind(1)
    slots = make.steps(make.rows, 1).long()
    yield "paged_cache_write", "8x128", (key, value, *caches, slots)
    for height, width, heads in ((17, 23, 32), (136, 184, 4)):
        q, k, v = make.floats(1, height, width, 3, heads, 64).unbind(3)
        label = f"{height}x{width}, {heads}x64"
        yield "neighbourhood_attention", label, (q, k, v, 5, 0.125)


def _samplings(make: _Maker) -> Calls:
    for batch, top_k, top_p in ((1, 0, 1.0), (8, 50, 0.9)):
        one = make.steps(batch, 0)
        p = one.float() + top_p
        logits = make.floats(batch, 151_936)
        args = (logits, one.float() + 0.7, one + top_k, p, one.float(), one.long(), one.long())
        yield "sample", f"{batch} x 151936, k {top_k}, p {top_p}", args
        seen = make.integers(3, batch + 1, 151_936, dtype=torch.int32)
        penalties = (one.float() + 1.1, one.float(), one.float() + 0.5)
        yield "penalise", f"{batch} x 151936", (logits, seen, one.long(), *penalties)


def _import_operators() -> None:
    from importlib import import_module

    for name in OPERATOR_PACKAGES:
        import_module(f"ostinato.kernels.{name}")
