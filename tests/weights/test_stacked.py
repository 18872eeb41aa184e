"""Stacked parameters, seeded tensors and manifests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ostinato.errors import WeightsError
from ostinato.layers.fp8 import Fp8Linear
from ostinato.layers.linear import Linear
from ostinato.weights.files import LocalFiles, SubFolder
from ostinato.weights.manifest import verify_manifest, write_manifest
from ostinato.weights.seeded import SeededTensors
from ostinato.weights.stacked import Part, load_parts
from ostinato.weights.tokenizer import ByteTokenizer

CPU = torch.device("cpu")
PARTS = {"weight": (Part("a", (2, 4)), Part("b", (3, 4)))}


def load(source: SeededTensors, module: nn.Module | None = None) -> nn.Module:
    module = module or Linear(4, 5, bias=False)
    load_parts(module, PARTS, source, origin="test", device=CPU, dtype=torch.float32)
    return module


def test_parts_are_stacked_in_their_order() -> None:
    source = SeededTensors({"a": (2, 4), "b": (3, 4)}, seed=0)
    weight = load(source).get_parameter("weight")
    tensors = dict(source.read("ab", device=CPU, dtype=None))
    assert torch.equal(weight[:2], tensors["a"]) and torch.equal(weight[2:], tensors["b"])
    assert not torch.equal(
        tensors["a"],
        dict(SeededTensors({"a": (2, 4)}, seed=1).read("a", device=CPU, dtype=None))["a"],
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (2, 4)}, "missing: b"),
        ({"a": (2, 4), "b": (3, 4), "c": (1,)}, "not expected: c"),
        ({"a": (3, 4), "b": (2, 4)}, r"a has shape \(3, 4\), expected \(2, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load(SeededTensors(shapes, seed=0))


def test_quantised_parts_and_their_scales_are_stacked_and_keep_their_dtypes() -> None:
    names = {"a.weight": (16, 16), "b.weight": (32, 16)}
    shapes = names | {f"{n}_scale": (s[0],) for n, s in names.items()}
    source = SeededTensors(shapes, seed=0, quantised=names)
    layer = Fp8Linear(16, 48)
    parts = {
        "weight": [Part(n, s) for n, s in names.items()],
        "weight_scale": [Part(f"{n}_scale", (s[0],)) for n, s in names.items()],
    }
    load_parts(layer, parts, source, origin="test", device=CPU, dtype=torch.bfloat16)
    assert layer.weight.dtype == torch.float8_e4m3fn and layer.weight_scale.dtype == torch.float32
    plain = SeededTensors(names, seed=0)
    expected = torch.cat([t for _, t in plain.read(names, device=CPU, dtype=None)])
    dequantised = layer.weight.float() * layer.weight_scale[:, None]
    torch.testing.assert_close(dequantised, expected, rtol=2**-4, atol=1e-3)
    assert layer.weight.float().abs().amax(1).eq(448).all()

    unquantised = SeededTensors(shapes, seed=0)
    with pytest.raises(WeightsError, match=r"a.weight is torch.float32, expected torch.float8"):
        load_parts(
            Fp8Linear(16, 48), parts, unquantised, origin="t", device=CPU, dtype=torch.bfloat16
        )


def test_a_manifest_vouches_for_every_byte(tmp_path: Path) -> None:
    folder = tmp_path / "variants" / "gd"
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(b"1")
    write_manifest(folder, "policy_export", ["x"])
    files = SubFolder(LocalFiles(tmp_path), "variants/gd")
    verify_manifest(files, "policy_export", ["x"])
    with pytest.raises(WeightsError, match="kind 'policy_export', expected 'other'"):
        verify_manifest(files, "other", ["x"])
    with pytest.raises(WeightsError, match="no checksum of y"):
        verify_manifest(files, "policy_export", ["y"])
    (folder / "x").write_bytes(b"2")
    with pytest.raises(WeightsError, match="x has checksum d4735e3a"):
        verify_manifest(files, "policy_export", ["x"])
    (folder / "x").unlink()
    with pytest.raises(WeightsError, match="x is missing"):
        verify_manifest(files, "policy_export", ["x"])
    with pytest.raises(WeightsError, match=r"manifest.json is missing"):
        verify_manifest(LocalFiles(tmp_path), "policy_export", ["x"])


def test_bytes_are_tokens_of_the_chat_text() -> None:
    text = "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"
    assert ByteTokenizer().encode("é") == list(text.encode())
