"""Bytes on the wire, against numpy, torch and the safetensors library."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from ostinato.serve.pooling.codec import pack_bytes, pack_safetensors, to_bytes, to_lists

ARRAY = np.array([[1.0, -2.5, 3.1415927], [1e-8, 65504.0, -0.0]], np.float32)


@pytest.mark.parametrize(("endianness", "order"), [("little", "<"), ("big", ">"), ("native", "=")])
@pytest.mark.parametrize(("dtype", "code"), [("float32", "f4"), ("float16", "f2")])
def test_bytes_are_numpys(endianness: str, order: str, dtype: str, code: str) -> None:
    assert to_bytes(ARRAY, dtype, endianness) == ARRAY.astype(f"{order}{code}").tobytes()


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=50))
def test_bfloat16_rounds_like_torch(values: list[float]) -> None:
    array = np.array([values], np.float32)
    expected = torch.from_numpy(array).bfloat16().view(torch.int16).numpy()
    assert to_bytes(array, "bfloat16") == expected.astype("<i2").tobytes()
    assert to_bytes(array, "bfloat16", "big") == expected.astype(">i2").tobytes()


def test_lists_give_the_same_floats_back() -> None:
    assert np.array_equal(np.float32(json.loads(to_lists(ARRAY))), ARRAY)


def test_the_table_says_where_each_matrix_lies() -> None:
    body, items = pack_bytes([ARRAY, ARRAY[:1]], "float16", "little")
    assert body == ARRAY.astype("<f2").tobytes() + ARRAY[:1].astype("<f2").tobytes()
    assert items[1] == {
        "index": 1,
        "dtype": "float16",
        "embed_dtype": "float16",
        "endianness": "little",
        "shape": (1, 3),
        "start": 12,
        "end": 18,
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_safetensors_are_read_by_the_library(dtype: str) -> None:
    content = pack_safetensors({"a": ARRAY, "b": ARRAY[1:]}, {"route": "exact"}, dtype)
    expected = torch.from_numpy(ARRAY).to(getattr(torch, dtype))
    tensors = load(content)
    assert torch.equal(tensors["a"], expected)
    assert torch.equal(tensors["b"], expected[1:])
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    assert json.loads(content[8 : 8 + length])["__metadata__"] == {"route": "exact"}
