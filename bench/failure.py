"""What does a capture that fails half-way leave behind?

A region waits for the device inside an operator, where no check before the capture sees it. Time
of the attempt, what works afterwards, and the memory that stays. After sixteen failures a process
tries no more captures. Needs an NVIDIA GPU. MiB are 2**20 bytes.

    python -m bench.failure [--failures 20] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import ostinato
from bench.memory import level, mib
from bench.report import write
from ostinato.errors import RecordingRefused

NUM_FLOATS = 1 << 22  # 16 MiB for each temporary


@torch.library.custom_op("ostinato_bench::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """Right as a direct call; no capture survives it."""
    return x * (2.0 if x.sum().item() > -1e30 else 3.0)


def half_way(x: torch.Tensor) -> torch.Tensor:
    parts = [x * i for i in range(4)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    return torch.sin(waits(total)) + 1


def sound(x: torch.Tensor) -> torch.Tensor:
    for _ in range(24):
        x = torch.sin(x) * 1.01
    return x


def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) + torch.randn_like(x)


def attempt(x: torch.Tensor) -> dict[str, Any]:
    """One recording that fails; the reason, and how the next call is served."""
    graphed = ostinato.graph(half_way)
    start = time.perf_counter()
    try:
        graphed.record(x)
    except RecordingRefused as refused:
        reason = str(refused)
    else:
        raise SystemExit("the capture did not fail")
    seconds = time.perf_counter() - start
    is_right = torch.equal(graphed(x), half_way(x))
    route = graphed.why()
    graphed.close()
    return {
        "reason": reason,
        "attempt_ms": round(seconds * 1e3, 1),
        "next_call_is_right": is_right,
        "next_route": route.route if route is not None else None,
    }


def after(x: torch.Tensor) -> dict[str, Any]:
    """Each thing that a broken capture spoils on torch 2.11: ``True`` or the error."""
    return {name: _tried(check, x) for name, check in CHECKS.items()}


def _tried(check: Callable[[torch.Tensor], bool], x: torch.Tensor) -> Any:
    try:
        return bool(check(x))
    except Exception as error:  # the finding itself
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _eager(x: torch.Tensor) -> bool:
    return bool(torch.isfinite((x * 2).sum()).item())


def _stream(_x: torch.Tensor) -> bool:
    return torch.cuda.current_stream() == torch.cuda.default_stream()


def _draws(_x: torch.Tensor) -> bool:
    torch.manual_seed(3)
    first = torch.randn(64, device="cuda")
    torch.manual_seed(3)
    return torch.equal(first, torch.randn(64, device="cuda"))


def _cache(_x: torch.Tensor) -> bool:
    torch.cuda.empty_cache()
    return True


def _recording(x: torch.Tensor) -> bool:
    return _recorded_like_direct(sound, x)


def _random_recording(x: torch.Tensor) -> bool:
    return _recorded_like_direct(noisy, x)


def _recorded_like_direct(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    graphed = ostinato.graph(fn)
    with ostinato.route("exact"):
        graphed(x)
        torch.manual_seed(5)
        got = [graphed(x) for _ in range(3)]
    torch.manual_seed(5)
    want = [fn(x) for _ in range(3)]
    graphed.close()
    return all(map(torch.equal, got, want))


CHECKS: dict[str, Callable[[torch.Tensor], bool]] = {
    "eager": _eager,
    "stream": _stream,
    "draws": _draws,
    "empty_cache": _cache,
    "recording": _recording,
    "random_recording": _random_recording,
}


def failures(num_failures: int) -> dict[str, Any]:
    """Memory after a good record-and-close, after one failure, and after many."""
    x = torch.randn(NUM_FLOATS, device="cuda")
    other = ostinato.graph(sound).record(x)
    with ostinato.route("exact"):
        want = other(x)
    after(x)
    before = level()
    first = attempt(x)
    works, once = after(x), level()
    for _ in range(num_failures - 1):
        last = attempt(x)
    many = level()
    with ostinato.route("exact"):
        survives = torch.equal(other(x), want)
    return {
        **first,
        **{f"after_{name}": answer for name, answer in works.items()},
        **{f"after_all_{name}": answer for name, answer in after(x).items()},
        "other_recording_survives": survives,
        "first_left_mib": mib(once.reserved - before.reserved),
        "first_driver_left_mib": mib(once.driver - before.driver),
        "num_failures": num_failures,
        "all_left_mib": mib(many.reserved - before.reserved),
        "all_driver_left_mib": mib(many.driver - before.driver),
        "last_reason": last["reason"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=20)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    row = failures(max(options.failures, 2))
    for name, value in row.items():
        print(f"{name:28} {value}", flush=True)
    write("failure", row, options.out)


if __name__ == "__main__":
    main()
