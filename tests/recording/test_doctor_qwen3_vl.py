"""transformers' own Qwen3-VL vision tower, as it comes, is refused at its ``tolist()``."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

from ostinato.recording.doctor import doctor
from tests.mutations import assert_fails_under
from tests.recording.tape_checks import bytes_of

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tower() -> Any:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    config = Qwen3VLVisionConfig(
        depth=1,
        hidden_size=32,
        num_heads=2,
        intermediate_size=64,
        out_hidden_size=32,
        num_position_embeddings=64,
        deepstack_visual_indexes=[0],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3VLVisionModel(config).eval()


def test_the_tower_is_refused_at_its_tolist_with_the_fix(
    tower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    patches = torch.linspace(-1, 1, 24 * 1536).reshape(24, 1536)
    before = [bytes_of(t) for t in (*tower.parameters(), *tower.buffers(), patches)]
    attributes = {name: dict(m.__dict__) for name, m in tower.named_modules()}

    def check() -> None:
        with torch.no_grad():
            report = doctor(tower, patches, grid_thw=grid)
        assert not report.recordable
        reads = [f for f in report.refusals if f.rule == "host-read" and f.location]
        lines = [(f, linecache.getline(p, int(n))) for f in reads for p, n in [_split(f.location)]]
        named = [f for f, line in lines if ".tolist()" in line]
        assert any("vision_utils.py" in str(f.location) for f in named)
        assert any("modeling_qwen3_vl.py" in str(f.location) for f in named)
        for finding in named:
            assert "metadata outside" in finding.fix and "load_encoder" in finding.fix
        dependent = [f for f in report.refusals if f.rule == "data-dependent"]
        assert any("repeat_interleave" in f.detail for f in dependent)

    assert_fails_under("doctor.host-read", check, monkeypatch)
    assert [bytes_of(t) for t in (*tower.parameters(), *tower.buffers(), patches)] == before
    assert {name: dict(m.__dict__) for name, m in tower.named_modules()} == attributes


def _split(location: str | None) -> tuple[str, str]:
    path, _, line = str(location).rpartition(":")
    return path, line
