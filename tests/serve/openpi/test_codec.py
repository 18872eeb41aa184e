"""The wire format: golden bytes, what msgpack and a plain hook read from it, what is refused."""

from __future__ import annotations

import tracemalloc
from itertools import permutations
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ostinato.serve.openpi.codec import CodecError, CodecLimits, packb, read_map, unpackb

GOLDEN = [
    (
        np.array(1.0),
        "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c408 000000000000f03f c405 6474797065 "
        "a3 3c6638 c405 7368617065 90",
    ),
    (
        np.float32(1.5),
        "83 c40d 5f5f6e7067656e657269635f5f c3 c404 64617461 cb 3ff8000000000000 c405 6474797065 "
        "a3 3c6634",
    ),
    (
        np.array([[1, 2]], np.uint8),
        "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c402 0102 c405 6474797065 a3 7c7531 c405 "
        "7368617065 92 01 02",
    ),
    (np.float64(1.5), "cb 3ff8000000000000"),
    ((1, "a", None, b"\x00"), "94 01 a1 61 c0 c4 01 00"),
    ({}, "80"),
]
NUMBERS = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.boolean_dtypes(),
)
ARRAYS = NUMBERS.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=300),
)
VALUES = st.recursive(
    st.one_of(PLAIN, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=5), inner, max_size=20)
    ),
    max_leaves=20,
)


def reference_hook(found: dict[Any, Any]) -> Any:
    """The format's own description, without any check."""
    if b"__ndarray__" in found:
        return np.ndarray(found[b"shape"], np.dtype(found[b"dtype"]), found[b"data"])
    if b"__npgeneric__" in found:
        return np.dtype(found[b"dtype"]).type(found[b"data"])
    return found


def same(a: Any, b: Any) -> bool:
    """Equal types and equal bits; a tuple comes back as a list."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        is_same = type(a) is type(b) and a.dtype.str == b.dtype.str and a.shape == b.shape
        return is_same and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return isinstance(b, float) and np.float64(a).tobytes() == np.float64(b).tobytes()
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_golden_bytes(value: Any, text: str) -> None:
    assert packb(value).hex() == text.replace(" ", "")


@given(VALUES)
@settings(max_examples=150, deadline=None)
def test_what_is_packed_comes_back_and_as_msgpack_reads_it(value: Any) -> None:
    data = packb(value)
    assert same(value, unpackb(data))
    assert same(msgpack.unpackb(data, object_hook=reference_hook), unpackb(data))


def test_keys_of_the_numpy_maps_may_be_text() -> None:
    spelled = {"__ndarray__": True, "data": b"\x01\x00", "dtype": b"<i2", "shape": [1]}
    assert same(unpackb(msgpack.packb(spelled)), np.array([1], "<i2"))
    scalar = {"__npgeneric__": True, "data": 3, "dtype": "|u1"}
    assert same(unpackb(msgpack.packb(scalar)), np.uint8(3))


def test_a_decoded_array_is_a_read_only_view_on_the_message() -> None:
    data = packb({"a": np.arange(12, dtype=np.uint8)})
    found = unpackb(data)["a"]
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("lead", range(8))
def test_a_decoded_array_is_aligned_wherever_it_stood(lead: int) -> None:
    value = np.arange(3, dtype=np.float64)
    found = unpackb(packb(["x" * lead, value]))[1]
    assert found.flags.aligned and same(found, value)


def test_arrays_that_are_not_contiguous_keep_their_values() -> None:
    value = np.arange(24).reshape(4, 6)[::2, ::-1]
    assert unpackb(packb(value)).tolist() == value.tolist()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.array([object()]), ValueError),
        (np.array([1j]), ValueError),
        (np.zeros(1, "V4"), ValueError),
        (np.complex64(1), ValueError),
        (np.datetime64("2026-01-01"), TypeError),
        (np.array(["2026-01-01"], "M8[D]"), TypeError),
        ({1, 2}, TypeError),
        (2**64, OverflowError),
    ],
)
def test_what_has_no_encoding_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        packb({"a": value})


def ndarray(**fields: Any) -> bytes:
    base = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<f8", b"shape": [1]}
    packed: bytes = msgpack.packb(base | {key.encode(): value for key, value in fields.items()})
    return packed


REFUSED = [
    (ndarray(dtype="|O"), "text '|O'; expected numbers"),
    (ndarray(dtype="<c8"), "expected numbers"),
    (ndarray(dtype="V8"), "expected numbers"),
    (ndarray(dtype="f8,f8"), "expected numbers"),
    (ndarray(dtype="(9999999,)f8"), "expected numbers"),
    (ndarray(dtype=["<f8"]), "list of 1; expected numbers"),
    (ndarray(shape=[2]), r"8 bytes for shape \(2,\) of <f8; expected 16"),
    (ndarray(shape=[-1]), "expected a list of sizes"),
    (ndarray(shape=[True]), "expected a list of sizes"),
    (ndarray(shape=8), "shape is int 8; expected a list of sizes"),
    (ndarray(shape=[0, 2**39, 2**39], data=b""), "array"),
    (ndarray(data="text"), "data is text 'text'; expected bytes"),
    (msgpack.packb({b"__ndarray__": True}), r"without data, dtype, shape; got \[__ndarray__\]"),
    (msgpack.packb({"__npgeneric__": 1, "data": [1], "dtype": "<f4"}), "list of 1 as <f4"),
    (msgpack.packb({"__npgeneric__": 1, "data": 300, "dtype": "|u1"}), r"int 300 as \|u1"),
    (b"", "cut off"),
    (b"\xc1", "byte 0xc1 at 0 begins no plain value"),
    (b"\xd4\x01\x00", "0xd4"),
    (b"\x92\x01", "cut off"),
    (b"\x01\x01", "1 bytes follow"),
    (b"\xa2\xff\xff", "not UTF-8"),
    (b"\x81\x01\x01", "a key is int 1; expected text or bytes"),
    (b"\x81\x90\x01", "a key is list of 0"),
    (b"\x91" * 40 + b"\xc0", "too-deep"),
    (b"\xdd\x00\xff\xff\xff", "too-many-values"),
    (b"\xdf\x7f\xff\xff\xff", "too-many-values"),
    (b"\xc6\xff\xff\xff\xff", "cut off"),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED)
def test_hostile_messages_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        unpackb(data)


def test_pickles_are_bytes_and_nothing_else() -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("unpickled",))

    pickled = pickle.dumps(Bomb())
    assert unpackb(packb({"a": pickled})) == {"a": pickled}
    with pytest.raises(CodecError):
        unpackb(pickled)
    with pytest.raises(CodecError, match="expected numbers"):
        unpackb(ndarray(dtype="O", data=pickled))


def test_a_message_must_be_a_map_of_names() -> None:
    assert read_map(packb({"a": 1, b"b": 2})) == {"a": 1, "b": 2}
    with pytest.raises(CodecError, match=r"the message is list of 1; expected a map"):
        read_map(packb([1]))
    with pytest.raises(CodecError, match="is not UTF-8"):
        read_map(b"\x81\xc4\x01\xff\x01")


def test_the_size_is_looked_at_first() -> None:
    with pytest.raises(CodecError, match="9 bytes; expected at most 8"):
        unpackb(packb(b"1234567"), CodecLimits(max_bytes=8))


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
@pytest.mark.parametrize("array", [np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones(300)])
def test_an_arrays_entries_in_any_order(order: tuple[int, ...], array: np.ndarray) -> None:
    entries = [
        (b"__ndarray__", True),
        (b"data", array.tobytes()),
        (b"dtype", array.dtype.str),
        (b"shape", array.shape),
    ]
    found = unpackb(msgpack.packb(dict(entries[place] for place in order)))
    assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
    assert not found.flags.writeable


def test_arrays_written_almost_as_usual() -> None:
    usual = packb(np.zeros(3, np.uint8))
    for before, after, reason in (
        (b"\xc4\x05shape\x91", b"\xc4\x05shapf\x91", "an array without shape"),
        (b"\xa3|u1", b"\xa3|O8", "expected numbers, truth or text"),
        (b"\xc4\x03", b"\xc4\x02", "\\[msgpack\\]"),
        (b"\x91\x03", b"\x91\x04", "3 bytes for shape \\(4,\\)"),
    ):
        with pytest.raises(CodecError, match=reason):
            unpackb(usual.replace(before, after))


def test_a_message_that_may_be_written_to_gives_arrays_that_may_not() -> None:
    found = unpackb(memoryview(bytearray(packb(np.zeros(3, np.uint8)))))
    assert not found.flags.writeable


def peak_bytes(data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            unpackb(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_claims_cost_nothing() -> None:
    """Nested lists that each claim as much as is allowed; a reader that makes room for what is
    claimed would take gigabytes.
    """
    assert peak_bytes(b"\xdd\x00\x00\xff\xf0" * 30) < 100_000
    assert peak_bytes(b"\xdc\xff\xff" + b"\x90" * 10) < 100_000


@given(st.binary(max_size=200))
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        value = unpackb(data)
    except CodecError:
        return
    assert same(value, msgpack.unpackb(data, object_hook=reference_hook))
