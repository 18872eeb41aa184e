"""Reading words of memory gives the answers that asking the tensors gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ostinato.recording import rawmemory
from ostinato.recording.rawmemory import AddressWatch

CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda t: None,
    "elements": lambda t: t.fill_(3),
    "grad_flag": lambda t: t.requires_grad_(),
    "data": lambda t: setattr(t, "data", torch.zeros(2, 3)),
    "set": lambda t: t.set_(torch.zeros(9)),
    "offset": lambda t: t.set_(t.untyped_storage(), 1, (2, 2), (2, 1)),
    "stride": lambda t: t.t_(),
    "shape": lambda t: t.resize_(3, 2),
    "grown": lambda t: t.resize_(100),
    "freed": lambda t: t.untyped_storage().resize_(0),
    "unsqueezed": lambda t: t.unsqueeze_(0),
    "dtype": lambda t: setattr(t, "data", t.data.view(torch.int32)),
    "negated": lambda t: setattr(t, "data", torch._neg_view(t.data)),
    "conjugated": lambda t: setattr(t, "data", torch.ones(2, 3, dtype=torch.cfloat).conj()),
    "attribute": lambda t: setattr(t, "scale", 2.0),
    "swapped": lambda t: torch.utils.swap_tensors(t, torch.zeros(2, 3)),
}


@pytest.mark.parametrize("is_supported", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_both_ways_notice_the_same(
    name: str, is_supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_supported:
        monkeypatch.setattr(rawmemory, "is_supported", lambda: False)
    tensors = [torch.ones(2, 3) for _ in range(3)] + [torch.zeros(()), torch.zeros(0)]
    watch = AddressWatch(tensors)
    assert watch.is_unchanged()
    CHANGES[name](tensors[1])
    assert watch.is_unchanged() == (name in ("nothing", "elements", "grad_flag"))
    assert watch.is_held() == (name not in ("grown", "freed"))


def test_this_interpreter_is_supported() -> None:
    assert rawmemory.is_supported() and rawmemory._layout() is not None


def test_items_of_are_identities() -> None:
    values = [object() for _ in range(7)]
    before = rawmemory.items_of(values)
    assert rawmemory.items_of(list(values)) == before
    values[3] = object()
    assert rawmemory.items_of(values) != before


def test_watched_memory_is_not_given_to_somebody_else() -> None:
    tensor = torch.ones(1000)
    address = tensor.data_ptr()
    watch = AddressWatch([tensor])
    tensor.data = torch.zeros(1)
    others = [torch.empty(1000) for _ in range(50)]
    assert address not in {t.data_ptr() for t in others} and not watch.is_unchanged()


def test_where_a_layout_is_wrong_the_tensors_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = rawmemory._layout()
    assert layout is not None
    for field in layout._fields:
        wrong = layout._replace(**{field: getattr(layout, field) + 8})
        monkeypatch.setattr(rawmemory, "_layout", lambda wrong=wrong: wrong)
        tensor = torch.ones(2, 3)
        watch = AddressWatch([tensor])
        assert watch._words is None and watch.is_unchanged()
        tensor.t_()
        assert not watch.is_unchanged()
