"""Small callables for the doctor: recordable ones, and others, each with another reason.

``# here`` marks the line that a report must name.
"""

from __future__ import annotations

import functools
import math
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

T = torch.Tensor
MASK = torch.tensor([True, False, True, True])
RECORDABLE: dict[str, Callable[[T], Any]] = {}
REFUSED: list[tuple[str, Callable[[T], Any]]] = []
INFORMED: list[tuple[str, Callable[[T], Any]]] = []


def recordable(case: Callable[[T], Any]) -> Callable[[T], Any]:
    RECORDABLE[case.__name__] = case
    return case


def refused(rule: str) -> Callable[[Any], Any]:
    return lambda case: REFUSED.append((rule, case)) or case


def informed(rule: str) -> Callable[[Any], Any]:
    return lambda case: INFORMED.append((rule, case)) or case


# -- recordable -----------------------------------------------------------------------------------


@recordable
def attention(x: T) -> T:
    q = x.reshape(1, 2, 2, 4)
    return F.scaled_dot_product_attention(q, q, q).reshape(4, 4) / math.sqrt(x.shape[0])


@recordable
def positions(x: T) -> T:
    steps = torch.arange(x.shape[0], device=x.device, dtype=x.dtype)
    return x + torch.zeros_like(x).index_copy(0, steps.long(), x) * steps.to(x.device)


@recordable
def select(x: T) -> dict[str, T]:
    best = x.argmax(1)
    return {"best": x.gather(1, best[:, None]), "rest": torch.where(x > 0, x, 0.0)}


@recordable
def on_a_named_gpu(x: T) -> T:
    return x.to("cuda") * torch.ones(4, device="cuda").cuda()


_block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).eval()


@recordable
def block(x: T) -> T:
    y: T = _block(x)
    return y + x


# -- not recordable -------------------------------------------------------------------------------


@refused("host-scalar")
def stop_early(x: T) -> T:
    for _ in range(4):
        x = x / 2
        if x.abs().max() < 1.0:  # here
            break
    return x


@refused("host-tensor")
def forgotten_device(x: T) -> T:
    steps = torch.where(torch.arange(4) > 1, torch.ones(4) / 8, 0.5)
    return x + steps  # here


@refused("device-move")
def made_on_the_host(x: T) -> T:
    steps = torch.linspace(0, 1, 4)
    return x + steps.to(x.device)  # here


@refused("boolean-write")
def masked(x: T) -> T:
    y = x.clone()
    y[x > 0] = x.sum()  # here
    return y


@refused("host-read")
def to_the_cpu(x: T) -> T:
    return x.to("cpu") + 1  # here


@refused("address")
def address(x: T) -> T:
    return x + x.data_ptr() % 2  # here


@refused("print")
def shown(x: T) -> T:
    text = repr(x)  # here
    return x + len(text)


@refused("host-random")
def drawn_by_python(x: T) -> T:
    return x * random.random()  # here


@refused("host-random")
def drawn_by_numpy(x: T) -> T:
    return x * float(np.random.rand())  # here


@refused("input-write")
def in_place(x: T) -> T:
    return x.mul_(2)  # here


@refused("stream")
def on_a_stream(x: T) -> T:
    with torch.cuda.stream(torch.cuda.Stream()):  # here
        return x + 1


@refused("call-fails")
def fails(x: T) -> T:
    raise LookupError("no such table")  # here


@refused("result-value")
def told_the_time(x: T) -> tuple[T, int]:
    return x + 1, time.perf_counter_ns()


@refused("baked-scalar")
def scaled_by_the_clock(x: T) -> T:
    return x * time.perf_counter()  # here


_calls = [0]


@refused("python-state")
def counted(x: T) -> T:
    _calls[0] += 1  # here
    return x * _calls[0]


@refused("baked-branch")
def every_other_time(x: T) -> T:
    _calls[0] += 1
    if _calls[0] % 2:
        return x + 1  # here
    return x * 2


_compiled = torch.compile(lambda x: x + 1, backend="eager")


@refused("compiled-frame")
def compiled(x: T) -> T:
    return _compiled(x)  # here


# -- good to know ---------------------------------------------------------------------------------


@informed("random")
def noisy(x: T) -> T:
    return x + torch.randn_like(x)  # here


_count = torch.zeros(())


@informed("state-write")
def counting_in_a_tensor(x: T) -> T:
    _count.add_(1)  # here
    return x * _count


@informed("first-call")
def lazy(x: T) -> T:
    if "table" not in _tables:
        _tables["table"] = torch.zeros(4, device=x.device)  # here
    return x + _tables["table"]


_tables: dict[str, T] = {}


@informed("environment")
def by_environment(x: T) -> T:
    return x + len(os.environ.get("HOME", ""))  # here


@informed("clock")
def timed(x: T) -> T:
    time.time()  # here
    return x


@informed("result-alias")
def transposed(x: T) -> T:
    return x.t()


@informed("result-constant")
def with_length(x: T) -> tuple[T, int]:
    return x + 1, len(x)


@functools.cache
def _hidden() -> T:
    return torch.ones(4)


_opaque = np.empty(1, dtype=object)
_opaque[0] = torch.ones(4)


@informed("external-read")
def read_behind_a_slot(x: T) -> T:
    return x + _opaque[0]  # here


@informed("source")
def not_reached(x: T) -> T:
    if len(x) > 1000:
        print(x.tolist())  # here
    return x + 1
