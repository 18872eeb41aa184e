"""Static results keep what a direct call's result is: values, strides, shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ostinato.errors import RecordingRefused
from ostinato.recording.results import Results
from tests.recording.serving import T, content


def example(x: T, table: T) -> dict[str, Any]:
    z = x * 2
    return {
        "z": z,
        "turned": z.t(),
        "corner": z[1:, 1:],
        "rows": x[1:],
        "x": x,
        "table": table[0],
        "wide": z[0].clone().expand(3, 3),
        "holes": torch.arange(12.0).add(z.sum())[::2],
        "none": None,
        "empty": z[:0],
        "scalar": z.sum(),
        "values": (1, "a", 2.0),
    }


def make() -> tuple[Results, T, T]:
    x, table = torch.arange(9.0).view(3, 3), torch.ones(2, 2)
    results = Results(example(x, table), [x], [table])
    return results, x, table


def test_store_and_hand_out() -> None:
    results, _, table = make()
    held, want = [], []
    for k in range(4):
        x = torch.arange(9.0).view(3, 3) + k
        value = example(x, table)
        results.store(value)
        got = results.hand_out([x])
        assert content(got) == content(value)
        for name in ("z", "turned", "corner", "wide", "holes", "rows"):
            assert got[name].stride() == value[name].stride(), name
        assert got["x"] is x and got["rows"].data_ptr() == x[1:].data_ptr()
        assert got["table"].data_ptr() == table.data_ptr()
        assert got["z"].data_ptr() == got["turned"].data_ptr()
        held.append(got)
        want.append(content(value))
    assert [content(h) for h in held] == want


def test_borrowed_results_are_the_static_ones() -> None:
    results, x, table = make()
    results.store(example(x, table))
    statics = {s.untyped_storage().data_ptr() for s in results.statics}
    borrowed = results.borrow([x])
    assert borrowed["z"].untyped_storage().data_ptr() in statics
    own = results.hand_out([x])
    assert own["z"].untyped_storage().data_ptr() not in statics
    assert results.num_bytes == sum(s.untyped_storage().nbytes() for s in results.statics)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((torch.ones(2), 1), (torch.ones(2), 2)),
        ((torch.ones(2), 1), (torch.ones(2), True)),
        ([torch.ones(2)], (torch.ones(2),)),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2, 3), torch.ones(3, 2).t()),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}),
    ],
)
def test_a_result_laid_out_otherwise_is_refused(first: Any, second: Any) -> None:
    results = Results(first, [], [])
    results.store(first)
    with pytest.raises(RecordingRefused) as caught:
        results.store(second)
    assert caught.value.rule == "result-value"


def test_results_that_share_memory_under_two_dtypes_are_refused() -> None:
    x = torch.ones(4)
    with pytest.raises(RecordingRefused, match="result-alias"):
        Results((x, x.view(torch.int32)), [], [])


def test_cut_keeps_only_the_calls_own_part() -> None:
    table = torch.ones(2)
    padded = torch.arange(8.0).view(4, 2)
    value = (padded * 2, padded, table, padded.sum())
    results = Results(value, [padded], [table])
    results.store(value)
    x = torch.arange(6.0).view(3, 2)
    got = results.cut([x], [padded], [{0: 3}, {0: 3}, {}, {}])
    assert torch.equal(got[0], x * 2) and got[1] is x and got[2] is table
    assert got[0].is_contiguous() and got[3].data_ptr() != results.statics[-1].data_ptr()
    got[0].fill_(0)
    assert results.statics[0][1, 1] == 6
