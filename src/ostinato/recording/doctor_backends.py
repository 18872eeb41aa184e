"""Which attention and matrix-product backends have kernels for the current GPU: each runs once."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

_ROWS, _HEADS, _WIDTH = 64, 2, 64


def backends() -> dict[str, str]:
    """Name -> ``"ok"``, or the first line of what went wrong."""
    from torch.nn.attention import SDPBackend

    tries: dict[str, Callable[[], Any]] = {
        "varlen_attn (in torch)": _varlen,
        "sdpa flash": lambda: _sdpa(SDPBackend.FLASH_ATTENTION),
        "sdpa cudnn": lambda: _sdpa(SDPBackend.CUDNN_ATTENTION),
        "sdpa mem-efficient": lambda: _sdpa(SDPBackend.EFFICIENT_ATTENTION),
        "fa3-fwd": _fa3,
        "bf16 GEMM": lambda: _rows(_WIDTH) @ _rows(_WIDTH).t(),
        "fp8 GEMM, row scales": _fp8,
        "triton": _triton,
    }
    return {name: _verdict(attempt) for name, attempt in tries.items()}


def _verdict(attempt: Callable[[], Any]) -> str:
    import warnings

    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            attempt()
            torch.cuda.current_stream().synchronize()
    except Exception as error:
        return f"no: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return "ok"


def _rows(*width: int) -> torch.Tensor:
    return torch.randn(_ROWS, *width, device="cuda", dtype=torch.bfloat16, generator=_generator())


def _generator() -> torch.Generator:
    """A private one: the caller's draws stay where they are."""
    return torch.Generator("cuda").manual_seed(0)


def _varlen() -> Any:
    from torch.nn.attention.varlen import varlen_attn

    x = _rows(_HEADS, _WIDTH)
    offsets = torch.tensor([0, _ROWS // 2, _ROWS], device="cuda", dtype=torch.int32)
    return varlen_attn(x, x, x, offsets, offsets, _ROWS // 2, _ROWS // 2)


def _sdpa(backend: Any) -> Any:
    from torch.nn.attention import sdpa_kernel

    x = _rows(_HEADS, _WIDTH).transpose(0, 1).unsqueeze(0)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(x, x, x)


def _fa3() -> Any:
    if importlib.util.find_spec("fa3_fwd_interface") is None:
        raise RuntimeError("not installed")
    major, minor = torch.cuda.get_device_capability()
    interface = importlib.import_module("fa3_fwd_interface")
    if major != 9:
        raise RuntimeError(f"importable, but its kernels are for sm_90, not sm_{major}{minor}")
    x = _rows(_HEADS, _WIDTH).unsqueeze(0)
    return interface.flash_attn_func(x, x, x)


def _fp8() -> Any:
    x = _rows(_WIDTH).to(torch.float8_e4m3fn)
    scale = torch.ones(_ROWS, 1, device="cuda")
    return torch._scaled_mm(x, x.t(), scale, scale.t(), out_dtype=torch.bfloat16)


def _triton() -> Any:
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("not installed")
    driver = importlib.import_module("triton.runtime.driver")
    return driver.driver.active.get_current_target()
