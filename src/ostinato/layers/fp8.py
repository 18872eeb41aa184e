"""A linear layer in E4M3 with one scale per row, and products behind fused producers.

A producer (a modulation, a gated activation) may hand its rows over quantised already;
``modulated`` and ``gated`` choose by the layer's kind, so that a block is written once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError
from ostinato.kernels.fp8 import modulate_quantize, quantize, swiglu_quantize
from ostinato.kernels.modulate import modulate
from ostinato.kernels.swiglu import swiglu
from ostinato.layers.linear import Linear

ROW_MULTIPLE = 16
DTYPE = torch.float8_e4m3fn


class Fp8Linear(nn.Module):
    """``weight`` (out, in) E4M3, ``weight_scale`` (out,) float32; bf16 in and out, no bias.

    Both sizes are multiples of 16 (``ConfigError`` otherwise): the product asks for it.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        if num_inputs % ROW_MULTIPLE or num_outputs % ROW_MULTIPLE:
            raise ConfigError(
                f"an FP8 layer of {num_inputs} to {num_outputs}; expected multiples of "
                f"{ROW_MULTIPLE}"
            )
        weight = torch.empty(num_outputs, num_inputs, dtype=DTYPE, device="meta")
        scale = torch.empty(num_outputs, dtype=torch.float32, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (T, in) bf16 to (T, out) bf16."""
        return self.product(*quantize(x), x.shape[0])

    def product(self, values: Tensor, scales: Tensor, num_rows: int) -> Tensor:
        """``values`` (R, in) E4M3 and ``scales`` (R, 1), R the next multiple of 16: (T, out)."""
        rows: Tensor = torch._scaled_mm(
            values,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.weight_scale[None],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return rows[:num_rows]


AnyLinear = Linear | Fp8Linear


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
    if isinstance(linear, Fp8Linear):
        return linear.product(*swiglu_quantize(packed), packed.shape[0])
    rows: Tensor = linear(swiglu(packed))
    return rows
