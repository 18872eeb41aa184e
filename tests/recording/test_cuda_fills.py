"""Which fills become kernels, and of which words; graphs are in ``tests/gpu/test_fills.py``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.recording.cuda_fills import MAX_BYTES, PTX, as_words

_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@given(
    to=st.integers(0, 64),
    value=st.integers(0, 2**32 - 1),
    element_size=st.sampled_from((1, 2, 4)),
    width=st.integers(0, 70),
)
def test_words_write_what_the_fill_would(
    to: int, value: int, element_size: int, width: int
) -> None:
    words = as_words(to, value, element_size, width, 1)
    num_bytes = element_size * width
    if words is None:
        assert to % 4 or num_bytes % 4 or num_bytes == 0
        return
    element = value % (1 << 8 * element_size)
    want = np.full(width, element, _TYPES[element_size]).tobytes()
    assert np.full(words.number, words.word, np.uint32).tobytes() == want
    assert words.to == to


def test_a_fill_of_rows_stays() -> None:
    assert as_words(0, 1, 4, 8, 2) is None


def test_what_is_huge_stays() -> None:
    assert as_words(0, 0, 4, MAX_BYTES // 4, 1) is not None
    assert as_words(0, 0, 4, MAX_BYTES // 4 + 1, 1) is None


@pytest.mark.parametrize("card", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"])
def test_the_kernel_compiles(card: str, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="its compiler of PTX is used")
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    name = "ptxas-blackwell" if card == "sm_120" else "ptxas"
    source = tmp_path / "fill.ptx"
    source.write_text(PTX)
    command = [folder / name, f"-arch={card}", source, "-o", tmp_path / "fill.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
