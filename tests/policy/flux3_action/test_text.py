"""The plain decoder against transformers' Qwen3 and the text path of Qwen3-VL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.layers.decoder import padded_causal_mask
from ostinato.policy.flux3_action.load import _text_prefix, read_text_config
from ostinato.policy.flux3_action.names import is_wanted_by_text, text_parts
from ostinato.policy.flux3_action.text import TextEncoder, pad_ids
from ostinato.weights.config import read_config
from ostinato.weights.files import open_files
from ostinato.weights.shards import StoredTensors
from ostinato.weights.stacked import load_parts

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "rms_norm_eps": 1e-6,
}
IDS, NUM_REAL = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(0)), 7


def make_theirs(kind: str) -> Any:
    import transformers

    torch.manual_seed(0)
    if kind == "qwen3":
        config = transformers.Qwen3Config(**TEXT, rope_theta=1e4, tie_word_embeddings=False)
        return transformers.Qwen3ForCausalLM(config).eval()
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    text = TEXT | {"rope_parameters": rope | {"mrope_interleaved": True}}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [],
    }
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision)
    return transformers.Qwen3VLForConditionalGeneration(config).eval()


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_vl"])
def test_taps_equal_the_hidden_states_of_transformers_close(kind: str, tmp_path: Path) -> None:
    theirs = make_theirs(kind)
    with torch.no_grad():  # norms away from one, so that they count
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(12)
    theirs.save_pretrained(tmp_path)
    files = open_files(tmp_path)
    ours = TextEncoder(read_text_config(read_config(files)), taps=(0, 2, 4))
    prefix = _text_prefix(files)
    stored = StoredTensors(files, is_wanted_by_text(prefix, 4))
    parts = text_parts(ours, prefix)
    cpu = torch.device("cpu")
    load_parts(ours, parts, stored, origin="theirs", device=cpu, dtype=torch.float32)

    mask = (torch.arange(12) < NUM_REAL).long()[None]
    positions = torch.arange(12)[None]
    with torch.no_grad():
        if kind == "qwen3":
            out = theirs(
                input_ids=IDS[None],
                attention_mask=mask,
                position_ids=positions,
                output_hidden_states=True,
            )
            states: list[Tensor] = list(out.hidden_states)
        else:
            states = []
            language = theirs.model.language_model
            for layer in language.layers:
                layer.register_forward_pre_hook(lambda _, args: states.append(args[0]))
            language(
                inputs_embeds=language.embed_tokens(IDS[None]),
                attention_mask=mask,
                position_ids=positions.expand(3, 1, -1),
            )
        context = ours(IDS, NUM_REAL)
    expected = torch.cat([states[k][0] for k in (0, 2, 4)], dim=-1)
    torch.testing.assert_close(context, expected, rtol=1e-4, atol=1e-4)
    assert context.abs().max() > 1


def test_captions_are_cut_and_filled_up_to_a_multiple() -> None:
    assert pad_ids([5, 6], multiple=80, max_length=8192) == ([5, 6] + [151643] * 78, 2)
    assert pad_ids([1] * 80, multiple=80, max_length=8192) == ([1] * 80, 80)
    ids, num_real = pad_ids([1] * 81, multiple=80, max_length=8192, pad_token=0)
    assert (len(ids), num_real, ids[80:82]) == (160, 81, [1, 0])
    assert pad_ids([1] * 300, multiple=80, max_length=200) == ([1] * 200, 200)


def test_padding_sees_the_real_tokens_only() -> None:
    mask = padded_causal_mask(4, 2, torch.device("cpu"))
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
