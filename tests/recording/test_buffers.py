"""Static inputs of every layout: what is loaded is what was given, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.recording.buffers import StaticInputs, copy_of, flat, is_dense, pad
from ostinato.recording.gate import vary
from ostinato.recording.ladder import Axis, Grows
from ostinato.recording.shared import SharedBuffers
from ostinato.recording.spec import TensorSpec
from ostinato.recording.upload import Upload
from tests.recording.tape_checks import bytes_of

T = torch.Tensor
CPU = torch.device("cpu")
BASE = torch.arange(400.0)

LAYOUTS: dict[str, Callable[[T], T]] = {
    "plain": lambda b: b[:12].view(3, 4),
    "transposed": lambda b: b[:12].view(3, 4).t(),
    "permuted": lambda b: b[:24].view(2, 3, 4).permute(2, 0, 1),
    "sliced": lambda b: b[:36].view(6, 6)[::2, 1:5],
    "unaligned": lambda b: b[1:13].view(3, 4),
    "expanded": lambda b: b[:4].expand(3, 4),
    "overlapping": lambda b: b.as_strided((4, 4), (2, 1), 3),
    "empty": lambda b: b[:0].view(0, 4),
    "scalar": lambda b: b[5],
    "stepped": lambda b: b[:50:7],
}


def static(tensors: list[T], **options: object) -> StaticInputs:
    settings_: dict[str, object] = {"in_place": {}, "uploads": (), "growth": {}, **options}
    return StaticInputs([TensorSpec.of(t) for t in tensors], CPU, **settings_)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=6), st.data())
def test_any_layouts_together(names: list[str], data: st.DataObject) -> None:
    dtypes = [data.draw(st.sampled_from([torch.float32, torch.int64])) for _ in names]
    first, second = BASE, BASE.flip(0)

    def inputs(base: T) -> list[T]:
        return [LAYOUTS[n](base.to(d)) for n, d in zip(names, dtypes, strict=True)]

    buffers = static(inputs(first))
    for base in (first, second):
        given_tensors = inputs(base)
        buffers.load(given_tensors)
        for mine, theirs in zip(buffers.tensors, given_tensors, strict=True):
            assert torch.equal(mine, theirs) and TensorSpec.of(mine) == TensorSpec.of(theirs)
            assert mine.data_ptr() != theirs.data_ptr() or not theirs.numel()
    addresses = [t.data_ptr() for t in buffers.tensors]
    buffers.load(inputs(first))
    assert addresses == [t.data_ptr() for t in buffers.tensors]
    assert buffers.num_bytes == sum(TensorSpec.of(t).num_bytes for t in given_tensors)


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_keep_the_layout(name: str) -> None:
    tensor = LAYOUTS[name](BASE)
    copy = copy_of(tensor)
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride()
    varied = vary(tensor, 1)
    assert varied.shape == tensor.shape
    if not is_dense(TensorSpec.of(tensor)):
        assert varied.stride() == tensor.stride()


def test_in_place_inputs_are_the_callers_own() -> None:
    tensor, other = torch.ones(3), torch.ones(2)
    buffers = static([tensor, other], in_place={0: tensor})
    assert buffers.tensors[0] is tensor and buffers.num_bytes == 8
    buffers.load([torch.zeros(3), torch.zeros(2)])
    assert tensor.tolist() == [1, 1, 1] and buffers.tensors[1].tolist() == [0, 0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=8))
def test_what_grows_is_padded_with_its_fill(sizes: list[tuple[int, int]]) -> None:
    rows, columns = Axis("rows", top=6), Axis("columns", top=5)
    growth = {
        0: {0: Grows(rows, fill=-1), 1: Grows(columns, fill=-1)},
        1: {0: Grows(rows, fill=rows)},
    }
    specs = [torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64)]
    buffers = static(specs, growth=growth)
    for n, m in sizes:
        x, y = torch.rand(n, m), torch.arange(n)
        buffers.load([x, y], {rows: 6, columns: 5})
        want_x, want_y = torch.full((6, 5), -1.0), torch.full((6,), 6)
        want_x[:n, :m], want_y[:n] = x, y
        assert torch.equal(buffers.tensors[0], want_x)
        assert torch.equal(buffers.tensors[1], want_y)
        assert torch.equal(pad(x, growth[0], (6, 5), {}), want_x)
        buffers.poison([x, y])
        assert torch.equal(buffers.tensors[0][:n, :m], x)
        assert buffers.tensors[0].isnan().sum() == 30 - n * m
        assert torch.equal(buffers.tensors[1], want_y)


def test_flat_is_the_whole_span() -> None:
    tensor = LAYOUTS["sliced"](BASE)
    assert flat(tensor, TensorSpec.of(tensor)).tolist() == list(range(1, 29))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 4), max_size=3),
            st.sampled_from([torch.float32, torch.int64, torch.bool, torch.int8, torch.bfloat16]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_one_upload_carries_everything(kinds: list[tuple[list[int], torch.dtype]]) -> None:
    upload = Upload([TensorSpec.of(torch.zeros(s, dtype=d)) for s, d in kinds], CPU)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        sent = [torch.randint(0, 2, s, generator=generator).to(d) for s, d in kinds]
        upload.send(sent)
        for mine, theirs in zip(upload.tensors, sent, strict=True):
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
            assert mine.data_ptr() % 16 == 0
    storages = {t.untyped_storage().data_ptr() for t in upload.tensors if t.numel()}
    assert len(storages) <= 1
    total = sum(t.numel() * t.element_size() for t in upload.tensors)
    assert total <= upload.num_bytes <= max(total + 16 * len(kinds), 1)


KEPT = [TensorSpec.of(torch.zeros(shape)) for shape in ((3,), (2, 5), (4,))]


def packed(offset: int, step: int) -> list[torch.Tensor]:
    """Views of one block, each beginning at a multiple of ``step`` floats."""
    block, views, at = torch.randn(200), [], offset
    for spec in KEPT:
        size = spec.shape.numel()
        views.append(block[at : at + size].view(spec.shape))
        at += -(-size // step) * step
    return views


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(("offset", "step"), [(0, 4), (8, 4), (0, 16), (0, 1)])
def test_what_is_packed_already_travels_from_where_it_is(
    is_kept: bool, offset: int, step: int
) -> None:
    upload = Upload(KEPT, CPU, is_kept=is_kept)
    for _ in range(2):
        sent = packed(offset, step)
        assert (upload._block_of(sent) is not None) is (step == 4)
        upload.send(sent)
        assert all(torch.equal(a, b) for a, b in zip(upload.tensors, sent, strict=True))


def test_what_the_device_holds_is_not_sent_again() -> None:
    upload = Upload(KEPT, CPU, is_kept=True)
    one, other, odd = packed(0, 4), packed(0, 4), packed(0, 16)

    def is_sent(given: list[torch.Tensor]) -> bool:
        upload._target.zero_()
        upload.send(given)
        return all(torch.equal(a, b) for a, b in zip(upload.tensors, given, strict=True))

    assert [is_sent(given) for given in (one, one, other, one)] == [True, False, True, True]
    assert [is_sent(given) for given in (odd, one, odd, odd)] == [True] * 4
    plain = Upload(KEPT, CPU)
    for _ in range(2):
        plain._target.zero_()
        plain.send(one)
        assert torch.equal(plain.tensors[0], one[0])


def test_a_block_that_is_not_laid_out_like_the_upload_is_copied() -> None:
    upload = Upload(KEPT, CPU, is_kept=True)
    sent = packed(0, 4)
    for odd in (
        [sent[0], sent[1].t().contiguous().t(), sent[2]],
        [sent[0].clone(), *sent[1:]],
        [torch.zeros(23)[:3], torch.zeros(23)[4:14].view(2, 5), sent[2]],
    ):
        assert upload._block_of(odd) is None
        upload.send(odd)
        assert all(torch.equal(a, b) for a, b in zip(upload.tensors, odd, strict=True))
    short = torch.randn(20)
    views = [short[:3], short[4:14].view(2, 5), short[16:]]
    assert upload._block_of(views) is not None  # its end is a multiple of 16 bytes
    ends = torch.randn(19)
    views = [ends[:3], ends[4:14].view(2, 5), torch.randn(4)]
    assert upload._block_of(views) is None


def test_uploads_are_padded_on_the_host() -> None:
    axis = Axis("n", top=4)
    buffers = static(
        [torch.zeros(5, dtype=torch.int64)],
        uploads=(0,),
        growth={0: {0: Grows(axis, plus=1, fill=axis)}},
    )
    for n in (4, 2, 3):
        buffers.load([torch.arange(n)], {axis: 4})
        assert buffers.tensors[0].tolist() == [*range(n), *[4] * (5 - n)]
    assert bytes_of(buffers.tensors[0])[:8] == b"\0" * 8


ROWS = Axis("rows", top=12)


def sharing(sizes: list[int]) -> list[StaticInputs]:
    """Inputs of recordings of these sizes, three columns each, in one memory; padding is -7."""
    shared = SharedBuffers()
    return [
        StaticInputs(
            [TensorSpec.of(torch.zeros(size, 3))],
            CPU,
            in_place={},
            uploads=[],
            growth={0: {0: Grows(ROWS, fill=-7.0)}},
            shared=shared,
        )
        for size in sizes
    ]


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 12), st.booleans()), min_size=1, max_size=12
    ),
    order=st.permutations([12, 7, 4]),
)
def test_recordings_that_share_memory_see_their_own_rows_and_fill(
    calls: list[tuple[int, int, bool]], order: list[int]
) -> None:
    inputs = sharing(order)
    for number, (which, used, is_poisoned) in enumerate(calls):
        size = order[which]
        given = torch.full((min(used, size), 3), float(number))
        inputs[which].load([given], {ROWS: size})
        static = inputs[which].tensors[0]
        assert torch.equal(static[: len(given)], given)
        assert (static[len(given) :] == -7).all(), "rows of an earlier call are left"
        if is_poisoned:
            inputs[which].poison([given])
            assert static[len(given) :].isnan().all()


def test_shared_inputs_take_the_memory_of_the_largest() -> None:
    shared = SharedBuffers()
    for size in (12, 7, 4):
        spec = TensorSpec.of(torch.zeros(size, 3))
        view, _ = shared.take(("input", 0, spec.shape[1:]), spec, CPU)
        assert view.shape == (size, 3) and view.is_contiguous()
    assert shared.num_bytes == 12 * 3 * 4
    assert sum(i.num_bytes for i in sharing([12, 7])) == 0, "the generation counts them"
    spec = TensorSpec.of(torch.zeros(20, 3))
    shared.take(("input", 0, spec.shape[1:]), spec, CPU)
    assert shared.num_bytes == (12 + 20) * 3 * 4, "what does not fit gets memory of its own"
