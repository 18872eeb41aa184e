"""Small callables that break one rule each, and callables that only look as if they did."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

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


@refused("host-read")
def pickled(x: torch.Tensor) -> Any:
    return pickle.dumps(x)


@refused("host-read")
def saved(x: torch.Tensor) -> Any:
    torch.save(x, io.BytesIO())


@refused("host-read")
def split_at_tensor(x: torch.Tensor) -> Any:
    return x.tensor_split(x.argmax(1)[:1])


@refused("reseed")
def seed(x: torch.Tensor) -> Any:
    torch.manual_seed(0)


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
    return torch.utils.dlpack.to_dlpack(x)  # type: ignore[attr-defined]


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


@refused("layout")
def quantised(x: torch.Tensor) -> Any:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


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


@refused("description")
def place_in_storage(x: torch.Tensor) -> Any:
    return x * x.storage_offset()


@refused("description")
def place_of_view(x: torch.Tensor) -> Any:
    return x * x[1:].storage_offset()


@refused("description")
def strided_from_the_start(x: torch.Tensor) -> Any:
    return torch.as_strided(x, (2,), (1,), 0) + 1


@refused("description")
def base(x: torch.Tensor) -> Any:
    return x if x._base is None else x + 1


@refused("description")
def made_in_inference_mode(x: torch.Tensor) -> Any:
    return x if x.is_inference() else x + 1


@refused("description")
def negated(x: torch.Tensor) -> Any:
    return x if torch.is_neg(x) else x + 1


@refused("rebind")
def assign_data(x: torch.Tensor) -> Any:
    x.data = torch.zeros(2)


@refused("rebind")
def transpose_in_place(x: torch.Tensor) -> Any:
    x.t_()


_compiled = torch.compile(lambda x: x + 1, backend="eager")


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
    "split_at_numbers": lambda x: x.tensor_split([1, 2])[1],
    "copied": lambda x: copy.deepcopy(x),
    "state_read": lambda x: x + len(torch.get_rng_state()),
    "detached": lambda x: x.detach() + x.data,
}
_traced: Any = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
