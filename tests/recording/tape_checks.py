"""Compares replays of a tape, poison on, with direct calls, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato.recording.tape import Tape, TapeBackend
from tests.recording.programs import Buffers, Step, run

T = torch.Tensor
Function = Callable[..., Any]


def bytes_of(tensor: T) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def record(fn: Function, inputs: Sequence[T]) -> tuple[Tape, list[T]]:
    """A tape of ``fn(*inputs)`` with poison on, and the static outputs it writes."""
    outputs = [tensor.detach().clone().contiguous() for tensor in as_list(fn(*inputs))]

    def body() -> None:
        for output, result in zip(outputs, as_list(fn(*inputs)), strict=True):
            output.copy_(result)

    return TapeBackend(poison=True).record(body), outputs


def as_list(result: Any) -> list[T]:
    return [result] if isinstance(result, T) else list(result)


def check_equals_direct(fn: Function, inputs: Sequence[T], others: Sequence[Sequence[T]]) -> None:
    """Record on ``inputs``, replay on each of ``others``, hold all results to the end."""
    tape, outputs = record(fn, inputs)
    held, expected = [], []
    for other in others:
        for static, new in zip(inputs, other, strict=True):
            static.copy_(new)
        random = torch.get_rng_state()
        tape.replay()
        held.append([output.clone() for output in outputs])
        torch.set_rng_state(random)
        expected.append([tensor.clone() for tensor in as_list(fn(*other))])
    for got, want in zip(held, expected, strict=True):
        assert [bytes_of(t) for t in got] == [bytes_of(t) for t in want]


def inputs(seed: int, *shapes: tuple[int, ...]) -> list[T]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def check(fn: Function, *shapes: tuple[int, ...]) -> None:
    check_equals_direct(fn, inputs(0, *shapes), [inputs(seed, *shapes) for seed in (1, 2, 3)])


def check_program(program: list[Step], *, inference: bool = False) -> None:
    """Replay on new inputs, with buffers that both sides write from equal beginnings."""
    with torch.inference_mode(inference):
        x, y = inputs(0, (4, 4), (4, 4))
        mine, theirs = Buffers(), Buffers()
        outputs = [torch.empty(4, 4) for _ in run(program, x, y, Buffers())]

        def body() -> None:
            for output, result in zip(outputs, run(program, x, y, mine), strict=True):
                output.copy_(result)

        tape = TapeBackend(poison=True).record(body)
        assert [bytes_of(t) for t in mine.tensors()] == [bytes_of(t) for t in theirs.tensors()]
        held, expected = [], []
        for seed in (1, 2):
            new = inputs(seed, (4, 4), (4, 4))
            x.copy_(new[0])
            y.copy_(new[1])
            random = torch.get_rng_state()
            tape.replay()
            held += [t.clone() for t in (*outputs, *mine.tensors())]
            torch.set_rng_state(random)
            expected += [
                t.clone() for t in (*run(program, new[0], new[1], theirs), *theirs.tensors())
            ]
        assert [bytes_of(t) for t in held] == [bytes_of(t) for t in expected]
