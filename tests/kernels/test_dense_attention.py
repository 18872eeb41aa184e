"""dense_attention against plain softmax, and who is asked on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ostinato import state
from ostinato.errors import ConfigError
from ostinato.kernels.dense_attention import cudnn, dense_attention


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_every_row_sees_every_row_close(rows: int) -> None:
    q, k, v = torch.randn(3, rows, 2, 16, generator=torch.Generator().manual_seed(rows))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / 16**0.5
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())
    result = dense_attention(q, k, v)
    assert result.is_contiguous() and (result - expected).abs().max() < 1e-5


def test_shapes_that_differ_are_refused() -> None:
    x = torch.ones(3, 2, 8)
    with pytest.raises(ConfigError, match=r"\(3, 2, 8\), \(2, 2, 8\), \(3, 2, 8\)"):
        dense_attention(x, x[:2], x)


def test_opcheck() -> None:
    q = torch.randn(4, 2, 8)
    torch.library.opcheck(torch.ops.ostinato.dense_attention.default, (q, q + 1, q - 1))


def query(rows: int = 300, dtype: torch.dtype = torch.bfloat16) -> Any:
    return SimpleNamespace(
        shape=(rows, 24, 128), dtype=dtype, device=SimpleNamespace(index=0, type="cuda")
    )


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A Hopper card on which cuDNN answers rightly; every trial is listed."""
    seen: list[Any] = []
    monkeypatch.setattr(cudnn, "_known", {})
    monkeypatch.setattr(cudnn, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(cudnn, "_answers_rightly", lambda q: seen.append(q) or True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return seen


def test_cudnn_is_tried_once_and_then_preferred(tries: list[Any]) -> None:
    assert cudnn.is_preferred(query()) and cudnn.is_preferred(query(3173))
    assert len(tries) == 1
    assert cudnn.is_preferred(query(dtype=torch.float16)) and len(tries) == 2


def test_nothing_is_tried_in_a_recording(tries: list[Any]) -> None:
    with state.entering(state.Activity(state.Phase.RECORDING)):
        assert not cudnn.is_preferred(query())
    assert tries == []
    assert cudnn.is_preferred(query())
    with state.entering(state.Activity(state.Phase.RECORDING)):
        assert cudnn.is_preferred(query())


def test_few_rows_other_dtypes_older_cards_and_the_users_switch_stay_with_torch(
    tries: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not cudnn.is_preferred(query(80)) and not cudnn.is_preferred(query(dtype=torch.float32))
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        assert not cudnn.is_preferred(query())
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    monkeypatch.setattr(cudnn, "_capability", lambda device: (8, 9))
    assert not cudnn.is_preferred(query()) and tries == []


def test_a_trial_that_raises_or_differs_leaves_it_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    like = torch.zeros(300, 2, 16)
    monkeypatch.setattr(cudnn, "by_cudnn", lambda q, k, v: dense_attention(q, k, v) * 1.01)
    assert not cudnn._answers_rightly(like) and "it differs by" in caplog.text
    monkeypatch.setattr(cudnn, "by_cudnn", dense_attention)
    assert cudnn._answers_rightly(like)

    def fail(*_: Any) -> None:
        raise RuntimeError("no valid execution plans")

    monkeypatch.setattr(cudnn, "by_cudnn", fail)
    assert not cudnn._answers_rightly(like) and "no valid execution plans" in caplog.text
