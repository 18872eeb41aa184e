"""The published sizes on the meta device: shapes of every stage, without a weight or a GPU."""

from __future__ import annotations

import pytest
import torch

from ostinato.policy.chunking import no_prefix
from ostinato.policy.flux3_action.config import read_package_config
from ostinato.policy.flux3_action.model import ActionModel, draw_noise
from ostinato.policy.flux3_action.vae import VaeConfig

META = torch.device("meta")
DROID = {"action_modality": "action_prediction_droid", "action_dim": 8, "chunk_size": 32}


@pytest.mark.parametrize("quantization", [None, "fp8r"])
def test_droid_shapes(quantization: str | None) -> None:
    config = read_package_config(DROID | {"quantization": quantization})
    model = ActionModel(config, VaeConfig())
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.float32 and not name.endswith("weight_scale"):
            parameter.data = parameter.data.bfloat16()
    model.set_constants(META, torch.bfloat16)
    lengths = []
    model.dit.single_blocks[0].register_forward_hook(lambda _, args, out: lengths.append(len(out)))

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, device=META, dtype=dtype)

    with torch.inference_mode():
        caption = model.caption(empty(80, 20480))
        observed = model.observe(empty(1, 3, 544, 736), empty(1, 8))
        noise = [x.to(META) for x in draw_noise(config, 0)]
        prefix = type(no_prefix(32, 8))(*(x.to(META) for x in no_prefix(32, 8)))
        scales = empty(2, dtype=torch.float32)
        time = empty(1, dtype=torch.float32)
        captions = (caption, caption)
        video, actions = model.velocities(observed, *noise, time, scales, captions)
        chunk = model.chunk(observed, *noise, scales, (caption,), prefix, 1, 5.0)
    assert caption.stream.hidden.shape == (80, 3072) and caption.cos.shape == (80, 64)
    assert observed.video.hidden.shape == (340, 3072) and observed.state.hidden.shape == (1, 3072)
    assert observed.video.joint.gate.shape == (1, 3072)
    assert [tuple(x.shape) for x in noise] == [(2720, 96), (32, 8)]
    assert video.shape == (2720, 96) and actions.shape == (32, 8) and chunk.shape == (32, 8)
    assert lengths == [3173] * 3  # two passes of one step, one of the other
    per_caption = (caption.stream.hidden, *caption.stream.joint, caption.cos, caption.sin)
    assert sum(t.nbytes for t in per_caption) == pytest.approx(0.56e6, rel=0.02)
