"""The ledger notices whatever a replay would not: moved memory, rebound values, hooks, modes."""

from __future__ import annotations

import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ostinato.recording import rawmemory
from ostinato.recording.ledger import Ledger
from tests.mutations import assert_fails_under

FACTOR: Any = 2.0
ME = sys.modules[__name__]


class Model(nn.Module):
    scale: Any = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.register_buffer("table", torch.ones(3))
        self.mask: Any = torch.ones(3)
        self.both: Any = [torch.zeros(3), torch.ones(3)]
        self.flags: Any = set()
        self.options: Any = {}
        self.shape: Any = (1, 2.0)
        self.recent: Any = deque([1.0])
        self.settings = types.SimpleNamespace(eps=1e-6)
        self.limits = np.array([1.0, 2.0])
        self.point = Point()

    def forward(self, x: Any) -> Any:
        if self.training or "fast" in self.flags:
            x = x * 2
        x = x * self.mask * self.scale + self.both[0] - self.both[1] * self.shape[1]
        x = x * self.options.get("gain", 1.0) + self.settings.eps + self.recent[0]
        x = x.clamp(max=float(self.limits[0])) * self.point.x * FACTOR + helper(1)
        return self.norm(self.inner(x)) * self.table  # type: ignore[operator]


class Point:
    __slots__ = ("x",)

    def __init__(self) -> None:
        self.x = 1.0


def helper(x: float, factor: float = 3.0) -> float:
    return x * factor


def put(name: str, value: Any) -> Callable[[Model], None]:
    return lambda m: setattr(m, name, value)


def swap_both(m: Model) -> None:
    m.both[0], m.both[1] = m.both[1], m.both[0]


def swap_tensors(m: Model) -> None:
    torch.utils.swap_tensors(m.inner.weight, nn.Parameter(torch.zeros(3, 3)))


def set_data(m: Model) -> None:
    m.inner.weight.data = torch.zeros(3, 3)


def set_storage(m: Model) -> None:
    m.table.set_(torch.zeros(3))  # type: ignore[operator]


MOVES: dict[str, Callable[[Model], Any]] = {
    "re-created": lambda m: setattr(m.inner, "weight", nn.Parameter(torch.zeros(3, 3))),
    "data": set_data,
    "cast": lambda m: m.double(),
    "cast_and_back": lambda m: m.double().float(),
    "swap_tensors": swap_tensors,
    "set": set_storage,
    "resize": lambda m: m.table.resize_(5),  # type: ignore[operator]
    "freed": lambda m: m.table.untyped_storage().resize_(0),  # type: ignore[operator]
    "transposed": lambda m: setattr(m.inner.weight, "data", m.inner.weight.data.t()),
    "narrowed": lambda m: setattr(m.inner.weight, "data", m.inner.weight.data[:2]),
    "buffer": put("table", torch.zeros(3)),
    "deleted": lambda m: delattr(m.inner, "bias"),
    "none": lambda m: setattr(m.inner, "bias", None),
    "loaded": lambda m: m.load_state_dict(Model().state_dict(), assign=True),
    "attribute_tensor": put("mask", torch.zeros(3)),
    "list_item": lambda m: m.both.__setitem__(0, torch.zeros(3)),
    "array": lambda m: m.limits.__setitem__(0, 5.0),
    "layer": lambda m: setattr(m, "norm", nn.LayerNorm(3)),
}

VALUES: dict[str, Callable[[Model], Any]] = {
    "swapped_items": swap_both,
    "set_item": lambda m: m.flags.add("fast"),
    "new_set": put("flags", {"fast"}),
    "filled_dict": lambda m: m.options.update(gain=2.0),
    "tuple": put("shape", (1, 3.0)),
    "tuple_int": put("shape", (1, 2)),
    "deque": lambda m: m.recent.appendleft(2.0),
    "namespace": lambda m: setattr(m.settings, "eps", 1e-5),
    "slot": lambda m: setattr(m.point, "x", 2.0),
    "hides_class": put("scale", 3.0),
    "train": lambda m: m.train(),
    "train_part": lambda m: m.norm.train(),
    "hook": lambda m: m.norm.register_forward_hook(lambda *a: None),
    "pre_hook": lambda m: m.register_forward_pre_hook(lambda *a: None),
    "forward": lambda m: setattr(m, "forward", lambda x: x),
    "epsilon": lambda m: setattr(m.norm, "eps", 1e-3),
}


def model() -> Model:
    return Model().requires_grad_(False).eval()


@pytest.fixture(params=[True, False], ids=["raw", "one-by-one"], autouse=True)
def raw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here runs with and without reading words of memory."""
    if not request.param:
        monkeypatch.setattr(rawmemory, "is_supported", lambda: False)


@pytest.mark.parametrize("change", MOVES.values(), ids=MOVES)
def test_memory_that_moved(change: Callable[[Model], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        m = model()
        ledger = Ledger(m)
        before = ledger.check()
        assert ledger.check() == before
        change(m)
        after = ledger.check()
        assert after.epoch > before.epoch and ledger.check() == after

    assert_fails_under("ledger.nothing_changes", check, monkeypatch)


@pytest.mark.parametrize("change", VALUES.values(), ids=VALUES)
def test_values_that_changed(
    change: Callable[[Model], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        m = model()
        ledger = Ledger(m)
        before = ledger.check()
        change(m)
        after = ledger.check()
        assert after != before and ledger.check() == after

    assert_fails_under("ledger.nothing_changes", check, monkeypatch)


def test_in_place_updates_and_equal_values_are_no_change() -> None:
    m = model()
    ledger = Ledger(m)
    before = ledger.check()
    m.inner.weight.mul_(2)
    m.load_state_dict(Model().state_dict())
    m.shape = (1, 2.0)
    m.settings.eps = float("1e-6")
    m.eval()
    m.flags.add("x")
    m.flags.discard("x")
    assert ledger.check() == before


def test_a_toggle_returns_to_its_variant() -> None:
    m = model()
    ledger = Ledger(m)
    evaluation = ledger.check()
    training = [m.train(), ledger.check()][1]
    assert training != evaluation and training.epoch == evaluation.epoch
    assert [m.eval(), ledger.check()][1] == evaluation
    assert [m.train(), ledger.check()][1] == training
    hook = m.norm.register_forward_hook(lambda *a: None)
    assert ledger.check() not in (training, evaluation)
    hook.remove()
    assert ledger.check() == training


def test_class_attributes_globals_defaults_and_global_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger(model())
    seen = [ledger.check()]
    for owner, name, value in (
        (Model, "scale", 5.0),
        (ME, "FACTOR", 4.0),
        (ME, "FACTOR", 4),
        (helper, "__defaults__", (1.0,)),
        (ME, "helper", lambda x: x),
    ):
        monkeypatch.setattr(owner, name, value)
        seen.append(ledger.check())
    handle = nn.modules.module.register_module_forward_hook(lambda *a: None)
    seen.append(ledger.check())
    handle.remove()
    assert len(set(seen)) == 7 and ledger.check() == seen[-2]


def test_closures_partials_and_nested_functions() -> None:
    import functools

    factor, weights = 2.0, {"w": torch.ones(2)}

    def inner(x: Any) -> Any:
        return x * factor * weights["w"]

    def outer(x: Any, more: Any) -> Any:
        def middle(y: Any) -> Any:
            return inner(y)

        return middle(x) + more["bias"]

    bias = {"bias": torch.zeros(2)}
    ledger = Ledger(functools.partial(outer, more=bias))
    assert {id(t) for t in ledger.tensors} == {id(weights["w"]), id(bias["bias"])}
    seen = [ledger.check()]
    factor = 3.0
    seen.append(ledger.check())
    weights["w"] = torch.zeros(2)
    seen.append(ledger.check())
    bias["bias"] = torch.ones(2)
    seen.append(ledger.check())
    assert len(set(seen)) == 4


def test_a_watched_tensor_from_nowhere() -> None:
    hidden = {"a": torch.ones(2)}
    ledger = Ledger(lambda x: x)
    assert ledger.tensors == []
    ledger.learn([hidden["a"]])
    before = ledger.check()
    assert [id(t) for t in ledger.tensors] == [id(hidden["a"])]
    hidden["a"] = torch.zeros(2)
    assert ledger.check().epoch > before.epoch


def test_revert_puts_python_values_back() -> None:
    m = model()
    ledger = Ledger(m)
    snapshot, before = ledger.snapshot(), ledger.check()
    Model.scale = 7.0
    m.flags.add("fast")
    m.options["gain"] = 3.0
    m.recent.append(1.0)
    m.both.append(1)
    m.settings.eps = 1.0
    m.point.x = 9.0
    m.shape = (3, 4)
    assert ledger.check() != before
    ledger.revert(snapshot)
    assert (Model.scale, m.flags, m.options, [*m.recent]) == (2.0, set(), {}, [1.0])
    assert (len(m.both), m.settings.eps, m.point.x, m.shape) == (2, 1e-6, 1.0, (1, 2.0))
    assert ledger.check() == before


def test_changes_are_named() -> None:
    m = model()
    ledger = Ledger(m)
    m.settings.eps = 1.0
    ledger.check()
    assert ledger.changes == ["fn.settings.eps: 1e-06 -> 1.0"]


def test_any_thread_may_check() -> None:
    m = model()
    ledger = Ledger(m)
    stop, failures = threading.Event(), []

    def check() -> None:
        try:
            while not stop.is_set():
                ledger.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(50):
        m.shape = (1, float(number))
        m.table = torch.zeros(3)
        ledger.check()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and ledger.check() == ledger.generation


def test_revert_leaves_alone_what_did_not_change() -> None:
    @dataclass(frozen=True, slots=True)
    class Sizes:
        width: int = 3

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = Sizes()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.sizes.width

    module = Scaled()
    ledger = Ledger(module)
    snapshot = ledger.snapshot()
    module(torch.ones(2))
    ledger.revert(snapshot)
    assert module.calls == 0 and module.sizes == Sizes()
