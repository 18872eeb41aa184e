"""Decoders against transformers, on checkpoints that it saved itself: fp32, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.errors import WeightsError
from ostinato.lm.contract import Batch
from ostinato.lm.load import load_decoder
from ostinato.lm.models.qwen import Qwen
from tests.lm.checkpoints import FAMILIES, make_model, save

PAGE = 4
CPU = torch.device("cpu")
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Any, Qwen]:
    reference = make_model(request.param)
    directory = save(reference, tmp_path_factory.mktemp("decoder"))
    return reference, load_decoder(directory, device=CPU)


def cache_for(model: Qwen, pages: int) -> torch.Tensor:
    config = model.config
    shape = (config.num_layers, 2, pages, PAGE, config.num_kv_heads, config.head_dim)
    return torch.full(shape, torch.nan)


def one_sequence(start: int, length: int, positions: torch.Tensor) -> Batch:
    """Rows ``start`` to ``start + length`` of a sequence whose pages run downwards from 31."""
    at = torch.arange(start, start + length)
    pages = 31 - torch.arange(16)
    return Batch(
        positions[:, start : start + length],
        pages[at // PAGE] * PAGE + at % PAGE,
        pages[None],
        torch.tensor([0, length]),
        torch.tensor([start + length]),
        torch.arange(length),
    )


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def three_axes(length: int) -> torch.Tensor:
    """Positions as an image in the middle of a text would have them."""
    positions = torch.arange(length).repeat(3, 1)
    positions[:, 9:21] = torch.stack(
        [torch.full((12,), 9), 9 + torch.arange(12) // 4, 9 + torch.arange(12) % 4]
    )
    positions[:, 21:] = 13 + torch.arange(length - 21)
    return positions


@pytest.mark.parametrize("chunks", [(40,), (16, 17, 7), (1,) * 40])
@torch.inference_mode()
def test_logits_are_close_to_transformers_whatever_the_chunks(
    pair: tuple[Any, Qwen], chunks: tuple[int, ...]
) -> None:
    reference, model = pair
    ids = torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(1))
    positions = three_axes(40)
    expected = reference.lm_head(
        reference.model.language_model(
            inputs_embeds=reference.get_input_embeddings()(ids)[None],
            position_ids=positions[:, None],
        ).last_hidden_state
    )[0]
    cache, start, found = cache_for(model, 32), 0, []
    for length in chunks:
        batch = one_sequence(start, length, positions)
        x = model.embed(ids[start : start + length])
        found.append(model(x, batch, cache, max_query_length=length))
        start += length
    assert distance(torch.cat(found), expected) < TOLERANCE
    assert torch.equal(torch.cat(found).argmax(-1), expected.argmax(-1))


@torch.inference_mode()
def test_deepstack_is_added_after_the_first_layers_close_to_transformers(
    pair: tuple[Any, Qwen],
) -> None:
    reference, model = pair
    if model.config.model_type != "qwen3_vl":
        pytest.skip("Qwen2.5-VL has no DeepStack")
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, model.config.width, generator=generator)
    levels = [torch.randn(12, model.config.width, generator=generator) for _ in range(3)]
    mask = torch.zeros(40, dtype=torch.bool)
    mask[9:21] = True
    positions = three_axes(40)
    expected = reference.lm_head(
        reference.model.language_model(
            inputs_embeds=x[None],
            position_ids=positions[:, None],
            visual_pos_masks=mask[None],
            deepstack_visual_embeds=levels,
        ).last_hidden_state
    )[0]
    deep = tuple(torch.zeros(40, model.config.width) for _ in levels)
    for rows, level in zip(deep, levels, strict=True):
        rows[9:21] = level
    batch = one_sequence(0, 40, positions)
    found = model(x, batch, cache_for(model, 32), max_query_length=40, deepstack=deep)
    assert distance(found, expected) < TOLERANCE
    without = model(x, batch, cache_for(model, 32), max_query_length=40)
    assert distance(without, expected) > 100 * TOLERANCE


@torch.inference_mode()
def test_padding_of_rows_and_sequences_changes_nothing(pair: tuple[Any, Qwen]) -> None:
    _, model = pair
    ids = torch.randint(0, 256, (12,), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(12).repeat(3, 1)
    exact = one_sequence(0, 12, positions)
    expected = model(model.embed(ids), exact, cache_for(model, 32), max_query_length=12)
    padded = Batch(
        torch.cat([positions, torch.zeros(3, 4, dtype=torch.int64)], 1),
        torch.cat([exact.slots, torch.full((4,), -1)]),
        torch.cat([exact.page_table, torch.zeros(2, 16, dtype=torch.int64)]),
        torch.tensor([0, 12, 12, 12]),
        torch.tensor([12, 0, 0]),
        torch.arange(12),
    )
    x = model.embed(torch.cat([ids, torch.zeros(4, dtype=torch.int64)]))
    cache = cache_for(model, 32)
    found = model(x, padded, cache, max_query_length=16)
    assert distance(found, expected) < 1e-6
    assert cache[:, :, :29].isnan().all()


def test_a_tied_head_and_older_names_load_the_same_values(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    reference = make_model("qwen2_5_vl", is_tied=True)
    directory = save(reference, tmp_path)
    model = load_decoder(directory, device=CPU)
    assert model.config.is_tied
    assert torch.equal(model.table, reference.get_input_embeddings().weight)
    file = directory / "model.safetensors"
    stored = {
        n.replace("model.language_model.", "model.").replace("model.visual.", "visual."): t
        for n, t in load_file(file).items()
    }
    save_file(stored, file)
    config = json.loads((directory / "config.json").read_text())
    flat = config | config.pop("text_config") | {"model_type": "qwen2_5_vl"}
    flat.pop("text_config", None)
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    flat["rope_theta"] = flat.pop("rope_parameters")["rope_theta"]
    (directory / "config.json").write_text(json.dumps(flat))
    older = load_decoder(directory, device=CPU)
    assert older.config == model.config
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, older.get_parameter(name)), name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_experts": 8}, "num_experts is 8"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"mrope_section": [1, 1, 1]}}, "mrope_section"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    directory = save(make_model("qwen2_5_vl"), tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config["text_config"] |= change
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=named.replace("[", r"\[")):
        load_decoder(directory, device=CPU)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    directory = save(make_model("qwen3_vl"), tmp_path)
    stored = load_file(directory / "model.safetensors")
    name = next(n for n in stored if n.endswith("layers.1.self_attn.k_norm.weight"))
    del stored[name]
    save_file(stored, directory / "model.safetensors")
    with pytest.raises(WeightsError, match=f"missing: {name}"):
        load_decoder(directory, device=CPU)
