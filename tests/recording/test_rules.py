"""Every rule refuses its kind, with the line of the caller, and passes what looks like it."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ostinato.errors import RecordingRefused
from ostinato.recording.probe import probe
from ostinato.recording.rules import RULES
from tests.mutations import assert_fails_under

Case = Callable[[torch.Tensor], Any]
REFUSED: list[tuple[str, Case]] = []


def refused(rule: str) -> Callable[[Case], Case]:
    """The line after ``def`` breaks ``rule``."""

    def register(case: Case) -> Case:
        REFUSED.append((rule, case))
        return case

    return register


@refused("host-scalar")
def item(x: torch.Tensor) -> Any:
    return x.sum().item()


@refused("host-scalar")
def branch(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x
    return -x


@refused("host-scalar")
def loop(x: torch.Tensor) -> Any:
    return [x for _ in range(x.argmax())]


@refused("host-compare")
def allclose(x: torch.Tensor) -> Any:
    return torch.allclose(x, x)


@refused("host-scalar")
def one_hot(x: torch.Tensor) -> Any:
    return F.one_hot(x.argmax(1))


@refused("host-read")
def to_list(x: torch.Tensor) -> Any:
    return x.tolist()


@refused("host-read")
def to_list_of_view(x: torch.Tensor) -> Any:
    return x.t()[1:].tolist()


@refused("host-read")
def numpy(x: torch.Tensor) -> Any:
    return x.numpy()


@refused("host-read")
def asarray(x: torch.Tensor) -> Any:
    return np.asarray(x)


@refused("host-read")
def cpu(x: torch.Tensor) -> Any:
    return x.cpu()


@refused("host-compare")
def equal(x: torch.Tensor) -> Any:
    return torch.equal(x, x)


@refused("print")
def representation(x: torch.Tensor) -> Any:
    return repr(x)


@refused("print")
def string(x: torch.Tensor) -> Any:
    return str(x + 1)


@refused("print")
def formatted(x: torch.Tensor) -> Any:
    return f"{x.sum():.3f}"


@refused("address")
def address(x: torch.Tensor) -> Any:
    return x.data_ptr()


@refused("export")
def dlpack(x: torch.Tensor) -> Any:
    return x.__dlpack__()


@refused("export")
def to_dlpack(x: torch.Tensor) -> Any:
    return torch.utils.dlpack.to_dlpack(x)


@refused("device-move")
def move(x: torch.Tensor) -> Any:
    return x.to("meta")


@refused("device-move")
def move_by_keyword(x: torch.Tensor) -> Any:
    return x.to(device=torch.device("meta"), dtype=torch.float16)


@refused("device-move")
def move_like(x: torch.Tensor) -> Any:
    return x.to(torch.empty(0, device="meta"))


@refused("device-move")
def cuda(x: torch.Tensor) -> Any:
    return x.cuda()


@refused("device-move")
def copy_across(x: torch.Tensor) -> Any:
    return torch.empty_like(x, device="meta").copy_(x)


@refused("host-memory")
def pin(x: torch.Tensor) -> Any:
    return x.pin_memory()


@refused("host-operand")
def host_operand(x: torch.Tensor) -> Any:
    return torch.empty(2, device="meta") * x.sum()


@refused("baked-data")
def tensor(x: torch.Tensor) -> Any:
    return torch.tensor(0.5) * x


@refused("baked-data")
def as_tensor(x: torch.Tensor) -> Any:
    return torch.as_tensor([1.0, 2.0])


@refused("baked-data")
def new_tensor(x: torch.Tensor) -> Any:
    return x.new_tensor([1.0])


@refused("baked-data")
def from_numpy(x: torch.Tensor) -> Any:
    return torch.from_numpy(np.ones(3))


@refused("baked-data")
def legacy_constructor(x: torch.Tensor) -> Any:
    return torch.FloatTensor([1.0, 2.0])


@refused("baked-data")
def frombuffer(x: torch.Tensor) -> Any:
    return torch.frombuffer(bytearray(8), dtype=torch.float32)


@refused("baked-data")
def list_index(x: torch.Tensor) -> Any:
    return x[[0, 2]]


@refused("data-dependent")
def nonzero(x: torch.Tensor) -> Any:
    return x.nonzero()


@refused("data-dependent")
def unique(x: torch.Tensor) -> Any:
    return torch.unique(x)


@refused("data-dependent")
def masked_select(x: torch.Tensor) -> Any:
    return torch.masked_select(x, x > 0)


@refused("data-dependent")
def repeat_interleave(x: torch.Tensor) -> Any:
    return torch.repeat_interleave(x.argmax(1))


@refused("boolean-read")
def mask_read(x: torch.Tensor) -> Any:
    return x[x > 0]


@refused("boolean-read")
def mask_read_of_rows(x: torch.Tensor) -> Any:
    return x[:, x[0] > 0]


@refused("boolean-write")
def mask_write_of_number(x: torch.Tensor) -> Any:
    x.clone()[x > 0] = 1.0


@refused("boolean-write")
def mask_write_of_tensor(x: torch.Tensor) -> Any:
    x.clone().index_put_((x > 0,), x.sum())


@refused("layout")
def sparse(x: torch.Tensor) -> Any:
    return x.to_sparse()


@refused("compiled-frame")
def compile_inside(x: torch.Tensor) -> Any:
    return torch.compile(torch.relu)(x)


@refused("compiled-frame")
def compiled_before(x: torch.Tensor) -> Any:
    return _compiled(x)


@refused("device-wait")
def synchronize(x: torch.Tensor) -> Any:
    torch.cuda.synchronize()


@refused("stream")
def stream(x: torch.Tensor) -> Any:
    with torch.cuda.stream(None):
        pass


@refused("allocator")
def empty_cache(x: torch.Tensor) -> Any:
    torch.cuda.empty_cache()


@refused("allocator")
def collect(x: torch.Tensor) -> Any:
    gc.collect()


@refused("thread")
def start_thread(x: torch.Tensor) -> Any:
    threading.Thread(target=x.sum).start()


@refused("input-write")
def write_input(x: torch.Tensor) -> Any:
    x.add_(1)


@refused("input-write")
def write_view_of_input(x: torch.Tensor) -> Any:
    x.t()[0].zero_()


@refused("input-write")
def write_input_by_out(x: torch.Tensor) -> Any:
    torch.add(x, 1, out=x)


@refused("rebind")
def assign_data(x: torch.Tensor) -> Any:
    x.data = torch.zeros(2)


@refused("rebind")
def transpose_in_place(x: torch.Tensor) -> Any:
    x.t_()


_compiled = torch.compile(lambda x: x + 1, backend="eager")


def check_refused(rule: str, case: Case) -> None:
    x = torch.arange(12.0).reshape(4, 3) - 4
    before = x.clone()
    with pytest.raises(RecordingRefused) as caught:
        probe(lambda: case(x), [x])
    lines, first = inspect.getsourcelines(case)
    body = next(n for n, line in enumerate(lines) if line.startswith("def ")) + 1
    assert caught.value.rule == rule
    assert caught.value.location == f"{__file__}:{first + body}"
    assert caught.value.fix == RULES[rule].fix
    assert RULES[rule].on_gpu in caught.value.reason
    assert torch.equal(x, before)


@pytest.mark.parametrize(("rule", "case"), REFUSED, ids=[case.__name__ for _, case in REFUSED])
def test_a_breach_is_refused_with_rule_line_and_fix(
    rule: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fails_under(f"rules.{rule}", lambda: check_refused(rule, case), monkeypatch)


def test_every_rule_of_the_table_is_tested() -> None:
    elsewhere = {"large-state", "triton-launch", "higher-order", "piece-result"}
    assert {rule for rule, _ in REFUSED} | elsewhere == set(RULES)


def test_a_triton_launch_outside_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        with pytest.raises(RecordingRefused) as caught:
            probe(lambda: kernel.run(), [])
        assert caught.value.rule == "triton-launch"
        assert str(caught.value.location).startswith(__file__)

    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (), {"run": lambda self: None})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    kernel = jit.JITFunction()
    assert_fails_under("rules.triton-launch", check, monkeypatch)


def test_a_triton_launch_inside_an_operator_is_the_operators_business(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (), {"run": lambda self: None})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    kernel = jit.JITFunction()

    with torch.library._scoped_library("ostinato_test_rules", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")

        def double(x: torch.Tensor) -> torch.Tensor:
            kernel.run()
            return x * 2

        library.impl("double", double, "CPU")
        x = torch.ones(2)
        seen = probe(lambda: torch.ops.ostinato_test_rules.double(x), [x])
    assert torch.equal(seen.result, torch.full((2,), 2.0))


def test_a_higher_order_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._higher_order_ops.cond import cond_op

    x = torch.ones(2)

    def check() -> None:
        with pytest.raises(RecordingRefused) as caught:
            probe(lambda: cond_op(x.sum() > 0, torch.sin, torch.cos, (x,)), [x])
        assert caught.value.rule == "higher-order"

    assert_fails_under("rules.higher-order", check, monkeypatch)


ALLOWED: dict[str, Case] = {
    "shape": lambda x: x.new_zeros(len(x), x.shape[1], x.numel()),
    "same_device": lambda x: x.to("cpu").to(torch.float16).to(x.device),
    "python_number": lambda x: x.clone().__setitem__((0, 1), 2.0),
    "integer_index": lambda x: x[x.argmax(1)[:2].clamp(max=2)],
    "integer_index_write": lambda x: x.clone().index_put_((x.argmax(1),), x, accumulate=True),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "known_repeats": lambda x: torch.repeat_interleave(x, 2, dim=0),
    "known_output_size": lambda x: torch.repeat_interleave(
        torch.ones(4, dtype=torch.long), output_size=4
    ),
    "nonzero_static": lambda x: torch.nonzero_static(x, size=3),
    "iterate": lambda x: [row + 1 for row in x],
    "own_view_in_place": lambda x: x.view(4, 3).unsqueeze_(0).squeeze_(0),
    "own_resize": lambda x: torch.add(x, 1, out=torch.empty(0)),
    "traced": lambda x: _traced(x),
    "detached": lambda x: x.detach() + x.data,
}
_traced = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", ALLOWED)
def test_what_only_looks_like_a_breach_passes(name: str, inference: bool) -> None:
    x = torch.arange(12.0).reshape(4, 3) - 4
    expected = ALLOWED[name](x)
    with torch.inference_mode(inference):
        result = probe(lambda: ALLOWED[name](x), [x]).result
    if isinstance(expected, torch.Tensor):
        assert torch.equal(result, expected)


def test_a_swallowed_refusal_is_raised_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)

    def body() -> Any:
        try:
            return x.sum().item()
        except RuntimeError:
            return x

    def check() -> None:
        with pytest.raises(RecordingRefused, match="host-scalar"):
            probe(body, [x])

    assert_fails_under("tape.swallowed_refusals_pass", check, monkeypatch)


def test_the_line_is_the_callers_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(
        "frames.innermost_of_all", lambda: check_refused("host-scalar", one_hot), monkeypatch
    )


def test_patches_act_only_while_a_probe_runs_and_only_on_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    originals = (torch.cuda.synchronize, gc.collect, threading.Thread.start)
    inside, done = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def other() -> None:
        inside.wait(5)
        try:
            gc.collect()
        except BaseException as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def body() -> None:
        inside.set()
        done.wait(5)

    probe(body, [])
    thread.join()
    assert not errors

    def check() -> None:
        probe(lambda: None, [])
        assert (torch.cuda.synchronize, gc.collect, threading.Thread.start) == originals

    assert_fails_under("patches.stay_installed", check, monkeypatch)
