"""The eager chains: what comes before, rounded to its own dtype, then per-row E4M3 quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from ostinato.kernels.bounds import FP32_EPS, units
from ostinato.kernels.gelu.reference import gelu
from ostinato.kernels.modulate.reference import modulate
from ostinato.kernels.norm.reference import layer_norm, rms_norm
from ostinato.kernels.swiglu.reference import swiglu

LARGEST = 448.0
"""The largest finite E4M3 number."""
SMALLEST_SCALE = 1e-12
ROW_MULTIPLE = 16
DTYPE = torch.float8_e4m3fn
Quantised = tuple[torch.Tensor, torch.Tensor]


def fp8_quantize(x: torch.Tensor) -> Quantised:
    # The reciprocal is a rounded fp32 factor: a division by 448 would differ between CPU and CUDA.
    amax = x.abs().amax(-1, keepdim=True).float()
    scale = (amax * (1.0 / LARGEST)).clamp(min=SMALLEST_SCALE)
    values = (x.float() / scale).clamp(-LARGEST, LARGEST)
    missing = -x.shape[0] % ROW_MULTIPLE
    quantised = pad(values, (0, 0, 0, missing)).to(DTYPE)
    return quantised, pad(scale, (0, 0, 0, missing), value=SMALLEST_SCALE)


def norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, kind: str
) -> torch.Tensor:
    return rms_norm(x, weight, eps) if kind == "rms" else layer_norm(x, weight, bias, eps)


def fp8_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, kind: str
) -> Quantised:
    return fp8_quantize(norm(x, weight, bias, eps, kind))


def fp8_add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = (x + residual).contiguous()
    return (*fp8_norm(total, weight, bias, eps, kind), total)


def fp8_modulate(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    segments: torch.Tensor | None,
    eps: float,
) -> Quantised:
    return fp8_quantize(modulate(x, scale, shift, segments, eps))


def fp8_gelu(x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> Quantised:
    return fp8_quantize(gelu(x, bias, activation))


def fp8_swiglu(packed: torch.Tensor, bias: torch.Tensor | None, activation: str) -> Quantised:
    return fp8_quantize(swiglu(packed, bias, activation))


def gelu_tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """As ``tolerance``, and 8 fp32 units of the input, by which torch's own 1 + tanh is off, and
    one step of the subnormals of x's dtype, to which GELU is rounded first. A value that moves so
    far is rounded to an E4M3 number there, whose steps are an eighth.
    """
    x, bias, _ = args
    step = torch.finfo(x.dtype).tiny * torch.finfo(x.dtype).eps
    values, scales = tolerance(expected, args)
    size = 8 * FP32_EPS * (x.float().abs() if bias is None else x.float().abs() + bias.abs())
    size = pad(size + step, (0, 0, 0, -x.shape[0] % ROW_MULTIPLE))
    return [values + 1.125 * size / expected[1], scales + size.amax(-1, keepdim=True) / LARGEST]


def tolerance(expected: Sequence[torch.Tensor], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """One E4M3 step of a value, and 16 units of x's dtype of a scale; a residual sum is bit-exact.

    A norm that is one unit off may move a value over a rounding boundary of E4M3, never over two.
    """
    quantised, scale, *total = expected
    allowed = [units(quantised), 16 * scale.abs() * torch.finfo(args[0].dtype).eps]
    return allowed + [torch.zeros_like(t, dtype=torch.float32) for t in total]
