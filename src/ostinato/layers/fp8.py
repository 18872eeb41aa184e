"""A linear layer in E4M3 with one scale per row, and products behind fused producers.

A producer (a norm, a modulation, an activation) may hand its rows over quantised already; these
functions choose by the kind of the layer that follows, so that a block is written once.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError
from ostinato.kernels.activations import Activation
from ostinato.kernels.fp8 import gelu_quantize, modulate_quantize, quantize, swiglu_quantize
from ostinato.kernels.gelu import gelu
from ostinato.kernels.linear import linear as multiply
from ostinato.kernels.modulate import modulate
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.linear import Linear

ROW_MULTIPLE = 16
DTYPE = torch.float8_e4m3fn


class Quantised(NamedTuple):
    """``num_rows`` rows as ``values`` (R, width) E4M3 and ``scales`` (R, 1), R a multiple of 16."""

    values: Tensor
    scales: Tensor
    num_rows: int


Rows = Tensor | Quantised
"""What a linear layer takes: rows, or rows that were quantised for it."""


class Fp8Linear(nn.Module):
    """``weight`` (out, in) E4M3, ``weight_scale`` (out,) float32; bf16 in and out.

    ``bias`` (out,) bf16 or absent. Both sizes are multiples of 16 (``ConfigError`` otherwise): the
    product asks for it.
    """

    bias: nn.Parameter | None

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        if not fits_fp8(num_inputs, num_outputs):
            raise ConfigError(
                f"an FP8 layer of {num_inputs} to {num_outputs}; expected multiples of "
                f"{ROW_MULTIPLE}"
            )
        weight = torch.empty(num_outputs, num_inputs, dtype=DTYPE, device="meta")
        scale = torch.empty(num_outputs, dtype=torch.float32, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.register_parameter("bias", None)

    def forward(self, x: Rows) -> Tensor:
        """``x`` (T, in) bf16, quantised or not, to (T, out) bf16."""
        if isinstance(x, Quantised):
            return self.product(*x)
        return self.product(*quantize(x), x.shape[0])

    def product(self, values: Tensor, scales: Tensor, num_rows: int) -> Tensor:
        """``values`` (R, in) E4M3 and ``scales`` (R, 1), R the next multiple of 16: (T, out)."""
        if not values.is_cuda and not _cpu_multiplies():
            return self._dequantised(values[:num_rows], scales[:num_rows])
        rows: Tensor = torch._scaled_mm(
            values,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.weight_scale[None],
            bias=self.bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return rows[:num_rows]

    def _dequantised(self, values: Tensor, scales: Tensor) -> Tensor:
        rows = (values.float() * scales) @ (self.weight.float() * self.weight_scale[:, None]).t()
        return (rows if self.bias is None else rows + self.bias).bfloat16()


def fits_fp8(num_inputs: int, num_outputs: int) -> bool:
    """Whether the product of rows with scales has these sizes."""
    return num_inputs % ROW_MULTIPLE == 0 and num_outputs % ROW_MULTIPLE == 0


@cache
def _cpu_multiplies() -> bool:
    """Whether this torch multiplies E4M3 rows with scales on the CPU."""
    values, scales = torch.ones(16, 16).to(DTYPE), torch.ones(16, 1)
    try:
        torch._scaled_mm(
            values, values.t(), scale_a=scales, scale_b=scales.t(), out_dtype=torch.bfloat16
        )
    except RuntimeError:
        return False
    return True


AnyLinear = Linear | Fp8Linear


def project(linear: AnyLinear, rows: Rows) -> Tensor:
    """``linear(rows)``; a bf16 layer's product by whoever is fastest."""
    if isinstance(linear, Fp8Linear):
        return linear(rows)  # type: ignore[no-any-return]
    assert isinstance(rows, Tensor), "rows are quantised for FP8 layers only"
    return multiply(rows, linear.weight, linear.bias)


def activated(first: AnyLinear, rows: Rows, activation: Activation, then: AnyLinear) -> Rows:
    """``activation(first(rows))``, as ``then`` wants it."""
    if isinstance(first, Linear) and isinstance(then, Linear):
        assert isinstance(rows, Tensor), "rows are quantised for FP8 layers only"
        return multiply(rows, first.weight, first.bias, activation=activation)
    inner = project(first, rows)
    if isinstance(then, Fp8Linear):
        return Quantised(*gelu_quantize(inner, activation=activation), inner.shape[0])
    return gelu(inner, activation=activation)


def gate_activated(packed: Tensor, then: AnyLinear) -> Rows:
    """``silu(gate) * value`` of ``packed`` (T, 2 * in), gate first, as ``then`` wants it."""
    if isinstance(then, Fp8Linear):
        return Quantised(*swiglu_quantize(packed), packed.shape[0])
    return swiglu(packed)


def quantised_linear(linear: Linear) -> Fp8Linear:
    """``linear`` with its weight rounded to E4M3, one scale for each output."""
    num_outputs, num_inputs = linear.weight.shape
    made = Fp8Linear(num_inputs, num_outputs)
    values, scales = quantize(linear.weight)
    made.weight = nn.Parameter(values, requires_grad=False)
    made.weight_scale = nn.Parameter(scales[:, 0].contiguous(), requires_grad=False)
    made.bias = linear.bias
    return made


def quantise_linears(module: nn.Module) -> int:
    """Make every linear layer of ``module`` whose sizes fit an FP8 one, in place: how many.

    Weights have been loaded, in bf16, and packed. The bf16 ones are given up one by one.
    """
    num_made = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear) and fits_fp8(*child.weight.shape):
                setattr(parent, name, quantised_linear(child))
                num_made += 1
    return num_made


def make_linear(num_inputs: int, num_outputs: int, *, is_fp8: bool) -> AnyLinear:
    """Without bias."""
    if is_fp8:
        return Fp8Linear(num_inputs, num_outputs)
    return Linear(num_inputs, num_outputs, bias=False)


def modulated(
    linear: AnyLinear,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    segments: Tensor | None,
    eps: float = 1e-6,
) -> Tensor:
    """``linear((1 + scale) * norm(x) + shift)``; see ``kernels.modulate`` for the shapes."""
    if isinstance(linear, Fp8Linear):
        quantised = modulate_quantize(x, scale, shift, segments=segments, eps=eps)
        return linear.product(*quantised, x.shape[0])
    rows: Tensor = linear(modulate(x, scale, shift, segments=segments, eps=eps))
    return rows


def gated(linear: AnyLinear, packed: Tensor) -> Tensor:
    """``linear(silu(gate) * value)`` of ``packed`` (T, 2 * in), gate first."""
    rows: Tensor = linear(gate_activated(packed, linear))
    return rows
