"""Threads that choose and prove within each other do not wait for each other for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.kernels.gate import Gate
from ostinato.kernels.rotary_attention import choice, reference
from ostinato.kernels.segment_attention import choice as attention
from ostinato.kernels.segment_attention import cuda
from ostinato.kernels.segment_attention.call import Backend, Call
from ostinato.kernels.segment_attention.reference import segment_attention_reference
from ostinato.kernels.select import Selector
from tests.kernels.agreement import operator

HEADS, HEAD_DIM = 2, 16


def timer(candidates: Any) -> list[float]:
    for candidate in candidates:
        candidate()
    return [float(-i) for i in range(len(candidates))]


def attend(call: Call, out: Tensor | None) -> Tensor:
    result = torch.empty_like(call.q, memory_format=torch.contiguous_format)
    segment_attention_reference(*call[:6], result)
    return result


class Meeting:
    """The first thread to come waits a little for the other, holding whatever it holds."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)

    def come(self, name: str) -> None:
        if threading.current_thread().name == name:
            with suppress(threading.BrokenBarrierError):
                self._both.wait(1)


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    selector = Selector(None, "test", timer=timer)
    backends = [Backend(name, attend, is_probed=False) for name in ("one", "two")]
    monkeypatch.setattr(attention, "CHOOSER", attention.Chooser(selector))
    monkeypatch.setattr(cuda, "CHOOSER", attention.CHOOSER)
    monkeypatch.setattr(attention, "steady", lambda call: backends[0])
    monkeypatch.setattr(attention, "candidates", lambda call: backends)
    monkeypatch.setattr(choice, "selector_of", lambda device: selector)
    monkeypatch.setattr(choice, "kernel", reference)
    return Meeting()


def arguments(rows: int, max_length: int) -> tuple[Any, ...]:
    angles = torch.rand(rows, HEAD_DIM // 2)
    qkv = torch.randn(rows, 3 * HEADS * HEAD_DIM).bfloat16()
    offsets = torch.tensor([0, rows // 2, rows], dtype=torch.int32)
    return (qkv, angles.cos(), angles.sin(), offsets, max_length, HEADS, 0.3, 1)


def both_end(one: Callable[[], object], other: Callable[[], object]) -> bool:
    threads = [
        threading.Thread(target=fn, name=name, daemon=True)
        for name, fn in (("one", one), ("other", other))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return not any(thread.is_alive() for thread in threads)


def test_choosing_a_chain_while_its_attention_is_chosen(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def within(q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: float, is_v_finite: bool) -> Any:
        meeting.come("one")
        return cuda.attend(q, k, v, *rest, scale, "auto", is_v_finite)

    probed = attention.candidates

    def candidates(call: Call) -> list[Backend]:
        meeting.come("other")
        return probed(call)

    monkeypatch.setattr(attention, "candidates", candidates)
    monkeypatch.setattr(reference, "segment_attention", within)
    q = torch.randn(300, HEADS, HEAD_DIM).bfloat16()
    offsets = torch.tensor([0, 300], dtype=torch.int32)
    assert both_end(
        lambda: choice.resolve(arguments(64, 64)),
        lambda: cuda.attend(q, q, q, offsets, 300, 0.3, "auto"),
    )


def test_choosing_a_chain_while_it_is_proven(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, known = Gate(timer), arguments(64, 64)
    assert choice.resolve(known) is not None  # by one kernel, which is not proven yet

    def rope(qkv: Tensor, *tables: Tensor, heads: int, head_dim: int, **options: bool) -> Any:
        meeting.come("one")
        args = (qkv, *tables, heads, heads, head_dim, "half", *options.values())
        return gate.serve(operator("rope"), args)

    def within(q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: float, is_v_finite: bool) -> Any:
        meeting.come("other")
        return cuda.attend(q, k, v, *rest, scale, "auto", is_v_finite)

    monkeypatch.setattr(reference, "rope", rope)
    monkeypatch.setattr(reference, "segment_attention", within)
    assert both_end(
        lambda: choice.resolve(arguments(128, 128)),
        lambda: gate.serve(operator("rotary_attention"), known),
    )
