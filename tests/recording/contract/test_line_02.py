"""Line 2, buffers: static memory that never grows or moves, one upload from the host."""

from __future__ import annotations

import pytest
import torch

from ostinato.recording.region import Region
from tests.mutations import assert_fails_under
from tests.recording.serving import T, check_calls, content, graphed, rand, serving


def check_growing_and_shrinking() -> None:
    sizes = [3, 50, 3, 200, 50, 3, 1, 200, 7, 3]
    check_calls(lambda x: x.cumsum(0) * 2, [(rand(i, n),) for i, n in enumerate(sizes * 3)])


def check_static_addresses() -> None:
    served = graphed(lambda x: x * 2)
    addresses = []
    for n in (4, 400, 40_000, 4):
        served(rand(n, n))
        (entry,) = [e for e in served.recordings() if e.inputs.tensors[0].shape == (n,)]
        addresses.append(entry.inputs.tensors[0].data_ptr())
    assert addresses[0] == addresses[-1] and len(set(addresses)) == 3
    x = rand(0, 4)
    assert x.data_ptr() not in addresses


def test_a_larger_need_is_a_new_buffer_and_a_new_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_static_addresses()
    check_growing_and_shrinking()


def check_uploads() -> None:
    def fn(x: T, offsets: T, scale: T) -> T:
        return x * scale + offsets.sum()

    region = Region("uploads", fn, uploads=frozenset({1, 2}))
    with serving(region) as served:
        held, want = [], []
        offsets, scale = torch.zeros(3, dtype=torch.int64), torch.zeros(())
        for i in range(6):
            offsets.copy_(torch.arange(3) * i)
            scale.fill_(0.5 + i)
            x = rand(i, 4)
            held.append(served.call((x, offsets, scale), {}))
            want.append(fn(x, offsets.clone(), scale.clone()))
        assert served.counters.last().route == "exact"  # type: ignore[union-attr]
        assert [content(h) for h in held] == [content(w) for w in want]


def check_inputs_are_loaded() -> None:
    check_calls(lambda x, y: x - y, [(rand(i, 3), rand(i + 9, 3)) for i in range(5)])


@pytest.mark.parametrize(
    ("mutation", "check"),
    [("upload.never_sent", check_uploads), ("buffers.never_loaded", check_inputs_are_loaded)],
)
def test_loading(mutation: str, check: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_fails_under(mutation, check, monkeypatch)  # type: ignore[arg-type]


def test_in_place_inputs_are_read_where_they_are() -> None:
    cache = torch.zeros(4)
    with serving(Region("in place", lambda x, c: x + c, in_place=frozenset({1}))) as served:
        for i in range(4):
            cache.fill_(i)
            assert content(served.call((rand(i, 4), cache), {})) == content(rand(i, 4) + i)
        assert served.counters.routes()[served.counters.last()] == 4  # type: ignore[index]
        (entry,) = served.recordings.entries()
        assert entry.inputs.tensors[1] is cache
        other = torch.ones(4)
        assert content(served.call((rand(9, 4), other), {})) == content(rand(9, 4) + 1)
        assert len(served.recordings.entries()) == 2
