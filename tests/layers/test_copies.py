"""Copies follow what they were made of, and keep none of it alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from ostinato.layers.copies import Copies, Pair, copies_of, forget
from ostinato.layers.mlp import GatedMlp, Mlp, pack_mlps
from tests.layers.test_layers import filled, random


def in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(2)


def loaded(weight: nn.Parameter) -> None:
    holder = nn.Module()
    holder.weight = weight
    holder.load_state_dict({"weight": 3 * weight.detach()})


def moved(weight: nn.Parameter) -> None:
    weight.data = 4 * weight.data


@pytest.mark.parametrize("change", [in_place, loaded, moved])
@pytest.mark.parametrize("which", ["first", "second"])
def test_a_change_is_noticed_and_followed(change, which: str) -> None:  # type: ignore[no-untyped-def]
    sources = {"first": nn.Parameter(random(3, 4)), "second": nn.Parameter(random(3, 4))}
    target = torch.cat([s.detach() for s in sources.values()])
    copies = Copies([Pair(sources["first"], target[:3]), Pair(sources["second"], target[3:])])
    assert not copies.are_stale()
    change(sources[which])
    assert copies.are_stale()
    copies.follow()
    assert not copies.are_stale()
    assert torch.equal(target, torch.cat([s.detach() for s in sources.values()]))


def test_sources_are_not_kept_and_nothing_is_asked_of_them_then() -> None:
    source, other = nn.Parameter(random(3, 4)), nn.Parameter(random(2))
    target, second = torch.zeros_like(source.detach()), torch.zeros_like(other.detach())
    copies = Copies([Pair(source, target), Pair(other, second)])
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None and not copies.are_stale()
    in_place(other)
    copies.follow()
    assert torch.equal(second, other.detach()) and not target.any()


def test_copies_made_in_inference_mode_follow_outside_of_it() -> None:
    source = nn.Parameter(random(3))
    with torch.inference_mode():
        target = source.detach().clone()
    copies = Copies([Pair(source, target)])
    in_place(source)
    copies.follow()
    assert torch.equal(target, source.detach())


@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_follow(bias: bool) -> None:
    layers = {
        "plain": filled(Mlp(8, 100, activation="gelu")),
        "gated": filled(GatedMlp(8, 100, bias=bias)),
    }
    model, x = nn.ModuleDict(layers), random(5, 8)
    originals = dict(model.named_parameters())
    twins = {
        "plain": Mlp(8, 100, activation="gelu"),
        "gated": GatedMlp(8, 100, bias=bias),
    }
    twin = nn.ModuleDict(twins)
    for name, parameter in originals.items():  # shares every tensor, packs none
        parent, _, leaf = name.rpartition(".")
        setattr(twin.get_submodule(parent), leaf, parameter)
    pack_mlps(model)
    pack_mlps(model)  # packs nothing more, forgets nothing
    for parameter in originals.values():
        in_place(parameter)
    copies_of(model).follow()
    want = twins["plain"].fc2(torch.nn.functional.gelu(twins["plain"].fc1(x)))
    torch.testing.assert_close(model["plain"](x), want)
    gated = twins["gated"]
    inner = torch.nn.functional.silu(gated.gate_proj(x)) * gated.up_proj(x)
    torch.testing.assert_close(model["gated"](x), gated.down_proj(inner))


def test_a_model_without_copies_and_one_that_was_forgotten() -> None:
    assert not copies_of(nn.Linear(2, 2)).are_stale()
    model = nn.Sequential(filled(Mlp(8, 100, activation="gelu")))
    weight = model[0].fc1.weight
    pack_mlps(model)
    in_place(weight)
    assert copies_of(model).are_stale()
    forget(model)
    assert not copies_of(model).are_stale()
