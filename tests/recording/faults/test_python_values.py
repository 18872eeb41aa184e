"""A Python value that a callable reads and that is changed between two calls: noticed wherever it
is kept, or the callable is refused.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import os
import queue
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ostinato.recording import objectmemory, rawmemory
from tests.mutations import assert_fails_under
from tests.recording.serving import T, content, graphed

Change = Callable[[], Any]
Made = tuple[Callable[..., Any], Change]

ELSEWHERE: Any = types.ModuleType("ostinato_test_elsewhere")
VARIABLE: ContextVar[float] = ContextVar("a number", default=2.0)
get_number = VARIABLE.get
ACTIVATION: Any = torch.relu
ME: Any = sys.modules[__name__]


def reset() -> None:
    """Everything that the cases below change and that outlives them."""
    sys.modules[ELSEWHERE.__name__] = ELSEWHERE
    ELSEWHERE.GAIN = 2.0
    ME.ACTIVATION = torch.relu
    Thing.gain = 2.0
    VARIABLE.set(2.0)
    os.environ["OSTINATO_TEST_GAIN"] = "2"


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    reset()
    yield
    reset()
    del sys.modules[ELSEWHERE.__name__], os.environ["OSTINATO_TEST_GAIN"]


class Thing:
    gain: Any = 2.0

    def times(self) -> float:
        return float(self.gain)


class Other(Thing):
    def times(self) -> float:
        return 7.0


class Doubling(nn.Module):
    def forward(self, x: T) -> T:
        return x * 2


class Tripling(Doubling):
    def forward(self, x: T) -> T:
        return x * 3


class Settings(dict[str, float]):
    gain = 2.0


class Lazy(dict[str, float]):
    def __getitem__(self, name: str) -> float:
        return dict.__getitem__(self, name) + 1


class Numbers(list[float]):
    gain = 2.0


def helper(x: T, *, gain: float = 2.0) -> T:
    return x * gain


def other_helper(x: T, *, gain: float = 2.0) -> T:
    return x + gain


def own_helper() -> Any:
    made: Any = types.FunctionType(helper.__code__, globals(), "helper")
    made.__kwdefaults__ = {"gain": 2.0}
    made.gain = 2.0
    return made


def function_attribute() -> Made:
    own = own_helper()
    return lambda x: x * own.gain, lambda: setattr(own, "gain", 3.0)


def new_function_attribute() -> Made:
    own = own_helper()
    return lambda x: x * getattr(own, "scale", 1.0), lambda: setattr(own, "scale", 3.0)


def function_code() -> Made:
    own = own_helper()
    return lambda x: own(x), lambda: setattr(own, "__code__", other_helper.__code__)


def function_defaults() -> Made:
    own = own_helper()
    return lambda x: own(x), lambda: setattr(own, "__kwdefaults__", {"gain": 3.0})


def parameter_attribute() -> Made:
    layer: Any = nn.Linear(3, 3).requires_grad_(False)
    layer.weight.scale = 2.0
    return lambda x: layer(x) * layer.weight.scale, lambda: setattr(layer.weight, "scale", 3.0)


def new_parameter_attribute() -> Made:
    layer: Any = nn.Linear(3, 3).requires_grad_(False)
    return (
        lambda x: layer(x) * getattr(layer.weight, "scale", 1.0),
        lambda: setattr(layer.weight, "scale", 3.0),
    )


def attribute_of_a_dictionary() -> Made:
    settings = Settings(a=1.0)
    return lambda x: x * settings.gain, lambda: setattr(settings, "gain", 3.0)


def attribute_of_a_list() -> Made:
    numbers = Numbers([1.0])
    return lambda x: x * numbers.gain, lambda: setattr(numbers, "gain", 3.0)


def dictionary_that_computes() -> Made:
    lazy = Lazy(a=1.0)
    return lambda x: x * lazy["a"], lambda: lazy.update(a=2.0)


def default_factory() -> Made:
    thing = Thing()
    numbers: Any = collections.defaultdict(lambda: thing.gain)
    return lambda x: x * numbers.default_factory(), lambda: setattr(thing, "gain", 3.0)


def user_dictionary() -> Made:
    held: Any = collections.UserDict(a=2.0)
    return lambda x: x * held["a"], lambda: held.update(a=3.0)


def chain_of_dictionaries() -> Made:
    held = collections.ChainMap({}, {"a": 2.0})
    return lambda x: x * held["a"], lambda: held.maps[1].update(a=3.0)


def read_only_view() -> Made:
    held = {"a": 2.0}
    view = types.MappingProxyType(held)
    return lambda x: x * view["a"], lambda: held.update(a=3.0)


def queued() -> Made:
    held: queue.Queue[float] = queue.Queue()
    held.put(2.0)
    return lambda x: x * held.queue[0], lambda: held.queue.appendleft(3.0)


def weak_reference() -> Made:
    thing = Thing()
    reference: Any = weakref.ref(thing)
    return lambda x: x * reference().gain, lambda: setattr(thing, "gain", 3.0)


def context_variable() -> Made:
    return lambda x: x * VARIABLE.get(), lambda: VARIABLE.set(3.0)


def getter_of_a_context_variable() -> Made:
    return lambda x: x * get_number(), lambda: VARIABLE.set(3.0)


def tensor_of_a_context_variable() -> Made:
    variable: ContextVar[T] = ContextVar("a tensor")
    variable.set(torch.ones(3))
    return lambda x: x + variable.get(), lambda: variable.set(torch.zeros(3))


def optimizer() -> Made:
    held = torch.optim.SGD([nn.Parameter(torch.ones(1), requires_grad=False)], lr=2.0)
    return lambda x: x * held.param_groups[0]["lr"], lambda: held.param_groups[0].update(lr=3.0)


def distribution() -> Made:
    held: Any = torch.distributions.Normal(0.0, 2.0, validate_args=False)
    return lambda x: x * held.scale, lambda: setattr(held, "scale", torch.tensor(3.0))


def imported_inside() -> Made:
    def fn(x: T) -> T:
        from ostinato_test_elsewhere import GAIN  # type: ignore[import-not-found]

        return x * GAIN  # type: ignore[no-any-return]

    return fn, lambda: setattr(ELSEWHERE, "GAIN", 3.0)


def environment() -> Made:
    return lambda x: x * float(os.environ["OSTINATO_TEST_GAIN"]), lambda: os.environ.update(
        OSTINATO_TEST_GAIN="3"
    )


def bytes_that_change() -> Made:
    held = bytearray([2])
    return lambda x: x * held[0], lambda: held.__setitem__(0, 3)


def standard_array() -> Made:
    held = array.array("d", [2.0])
    return lambda x: x * held[0], lambda: held.__setitem__(0, 3.0)


def numpy_shape() -> Made:
    held = np.zeros((1, 2))

    def change() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of newer numpy
            held.shape = (2, 1)

    return lambda x: x * len(held), change


def large_list() -> Made:
    held = [2.0] * 5000
    return lambda x: x * held[1], lambda: held.__setitem__(1, 3.0)


def another_large_list() -> Made:
    thing = Thing()
    thing.gain = [2.0] * 5000
    return lambda x: x * thing.gain[1], lambda: setattr(thing, "gain", [3.0] * 5000)


def large_dictionary() -> Made:
    held = dict.fromkeys(range(5000), 2.0)
    return lambda x: x * held[1], lambda: held.update({1: 3.0})


def list_in_a_large_tuple() -> Made:
    held = ([2.0],) * 5000
    return lambda x: x * held[0][0], lambda: held[0].__setitem__(0, 3.0)


def class_of_an_object() -> Made:
    thing = Thing()
    return lambda x: x * thing.times(), lambda: setattr(thing, "__class__", Other)


def class_of_a_module() -> Made:
    module = Doubling()
    return module, lambda: setattr(module, "__class__", Tripling)


def metaclass() -> Made:
    class Meta(type):
        gain = 2.0

    class Held(metaclass=Meta):
        pass

    return lambda x: x * Held.gain, lambda: setattr(Meta, "gain", 3.0)


def library_function() -> Made:
    return lambda x: ACTIVATION(x - 2), lambda: setattr(ME, "ACTIVATION", torch.sigmoid)


def other_dtype() -> Made:
    held = torch.full((3,), 2.0)
    return lambda x: x * held, lambda: setattr(held, "data", held.data.view(torch.int32))


def conjugated() -> Made:
    held = torch.full((3,), 1 + 2j)
    return lambda x: x * held, lambda: setattr(held, "data", held.data.conj())


def negated() -> Made:
    held = torch.full((3,), 2.0)
    return lambda x: x * held, lambda: setattr(held, "data", torch._neg_view(held.data))


NOTICED = [
    value
    for value in list(vars().values())
    if getattr(value, "__annotations__", {}) == {"return": "Made"}
]


@pytest.fixture(params=[True, False], ids=["raw", "one-by-one"])
def raw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(rawmemory, "is_supported", lambda: False)
        monkeypatch.setattr(objectmemory, "has_versions", lambda: False)


@pytest.mark.usefixtures("raw")
@pytest.mark.parametrize("make", NOTICED, ids=lambda make: make.__name__)
def test_the_next_call_sees_it(make: Callable[[], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        reset()
        fn, change = make()
        served, x = graphed(fn), torch.ones(3)
        with torch.no_grad():
            for _ in range(3):
                assert content(served(x)) == content(fn(x))
            assert served.why().route == "exact", served.why()
            before = content(fn(x))
            change()
            assert content(served(x)) == content(fn(x)) != before

    assert_fails_under("ledger.nothing_changes", check, monkeypatch)


@dataclasses.dataclass
class Argument:
    x: T
    gain = 2.0

    def times(self) -> T:
        return self.x * self.gain


def test_the_class_of_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        monkeypatch.setattr(Argument, "gain", 2.0)
        served = graphed(lambda argument: argument.times())
        x = torch.ones(3)
        assert [served(Argument(x))[0].item() for _ in range(3)] == [2.0] * 3
        assert served.why().route == "exact"
        monkeypatch.setattr(Argument, "gain", 3.0)
        assert served(Argument(x))[0].item() == 3.0

    assert_fails_under("ledger.arguments_have_no_code", check, monkeypatch)


def thread_local() -> Callable[[T], T]:
    held = threading.local()
    held.gain = 2.0
    return lambda x: x * getattr(held, "gain", 7.0)


def large_array() -> Callable[[T], T]:
    held = np.full(10_000, 2.0)
    return lambda x: x * float(held[0])


def view_of_a_large_array() -> Callable[[T], T]:
    held = np.full(10_000, 2.0)[:9_000]
    held.flags.writeable = False
    return lambda x: x * float(held[0])


def large_bytes() -> Callable[[T], T]:
    held = bytearray(100_000)
    return lambda x: x + held[0]


def huge_list() -> Callable[[T], T]:
    held = [2.0] * 100_000
    return lambda x: x * held[0]


def proxy() -> Callable[[T], T]:
    thing = Thing()
    held: Any = weakref.proxy(thing)
    fn: Any = lambda x: x * held.gain  # noqa: E731
    fn.kept = thing
    return fn  # type: ignore[no-any-return]


def advancing() -> Callable[[T], T]:
    held = iter([2.0] * 50)
    return lambda x: x * next(held)


@pytest.mark.parametrize(
    "make",
    [thread_local, large_array, view_of_a_large_array, large_bytes, huge_list, proxy, advancing],
)
def test_what_cannot_be_watched_is_refused(
    make: Callable[[], Callable[[T], T]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        fn, x = make(), torch.ones(3)
        served = graphed(fn)
        for _ in range(4):
            assert content(served(x)) == content(fn(x))
        reason = served.why().reason
        assert served.why().route == "direct" and "[unwatched] fn.held is a" in reason

    assert_fails_under("recorder.unwatched_is_recorded", check, monkeypatch)


def test_large_and_read_only_is_recorded() -> None:
    held = np.full(10_000, 2.0)
    held.flags.writeable = False
    served = graphed(lambda x: x * float(held[0]))
    for _ in range(3):
        assert served(torch.ones(1)).item() == 2.0
    assert served.why().route == "exact"
