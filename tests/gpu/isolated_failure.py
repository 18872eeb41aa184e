"""Programs whose captures fail: what a process must still be able to do."""

from __future__ import annotations

from typing import Any

import torch

import ostinato
from bench import failure
from ostinato.recording import cuda_heal
from ostinato.recording.cuda import MAX_FAILED_CAPTURES
from tests.gpu.hidden import on_stream, order, reads_back
from tests.gpu.regions import DEVICE, T, exactly, refused, same, tensor, waves

LIMIT_MIB = 256
"""All failures of a process together; sixteen times the region's temporaries would be 1,536."""


def half_way() -> dict[str, Any]:
    """A wait hidden in an operator. Then eager work, draws, ``empty_cache``, new recordings."""
    figures = failure.failures(MAX_FAILED_CAPTURES + 2)
    assert "[capture-failed]" in figures["reason"] and "failure.py:" in figures["reason"], figures
    assert figures["next_call_is_right"] and figures["next_route"] == "direct", figures
    for name in failure.CHECKS:
        assert figures[f"after_{name}"] is True, figures
    for name in ("eager", "stream", "draws", "empty_cache"):
        assert figures[f"after_all_{name}"] is True, figures
    assert figures["other_recording_survives"], figures
    assert "no more are tried" in figures["last_reason"], figures
    assert figures["first_left_mib"] <= LIMIT_MIB / 2, figures
    assert figures["all_left_mib"] <= LIMIT_MIB, figures
    return figures


def other_keys_go_on() -> None:
    """A failure denies its key and closes its generation; recordings before and after it live."""
    before, after, x = ostinato.graph(waves), ostinato.graph(waves), tensor(0, 1 << 16)
    assert same(exactly(before, x), waves(x))
    failing = ostinato.graph(lambda x: torch.sin(reads_back(x)))
    with refused("capture-failed") as caught:
        failing.record(x)
    assert "hidden.py:" in str(caught.value), caught.value
    y = tensor(1, 1 << 15)
    assert same(exactly(after, y), waves(y))
    first, second = before.recordings()[0], after.recordings()[0]
    assert first.generation is not second.generation and not first.generation.is_open
    for seed in range(5):
        x, y = tensor(seed, 1 << 16), tensor(seed, 1 << 15)
        assert same(exactly(before, x), waves(x)) and same(exactly(after, y), waves(y))
    assert len(cuda_heal.broken_graphs) == 1


def unjoined_side_stream() -> None:
    """A forked stream that never comes back breaks the capture; the process goes on."""
    side, kept = torch.cuda.Stream(), torch.zeros(4096, device=DEVICE)

    def forked(x: T) -> T:
        y = torch.sin(x)
        order(torch.cuda.current_stream(), side)
        with on_stream(side):
            torch.mul(y, 2, out=kept)
        return torch.cos(y)

    graphed, x = ostinato.graph(forked), tensor(0, 4096)
    with refused("(capture-failed|stream-escape)"):
        graphed.record(x)
    torch.cuda.synchronize()
    assert same(graphed(x), forked(x))
    big = tensor(0, failure.NUM_FLOATS)
    works = failure.after(big)
    assert all(answer is True for answer in works.values()), works


def body_raises() -> None:
    """An exception of the callable while it is recorded: it is named, and nothing else happens."""
    calls = {"left": 0}

    @torch.library.custom_op("gputests::raises_in_capture", mutates_args=())
    def raises_in_capture(x: T) -> T:
        if torch.cuda.is_current_stream_capturing():
            calls["left"] += 1
            raise ValueError("not today")
        return x + 1

    graphed, x = ostinato.graph(lambda x: torch.sin(raises_in_capture(x))), tensor(0, 64)
    with refused("capture-failed") as caught:
        graphed.record(x)
    assert "ValueError while recording: not today" in str(caught.value), caught.value
    assert calls["left"] == 1
    assert same(graphed(x), torch.sin(x + 1))
    works = failure.after(tensor(0, failure.NUM_FLOATS))
    assert all(answer is True for answer in works.values()), works
