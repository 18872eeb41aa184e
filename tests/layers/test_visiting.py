"""A module on the host is called elsewhere, and stays where it is."""

from __future__ import annotations

import torch

from ostinato.layers.linear import Linear
from ostinato.layers.visiting import call_on, send_home


def linear() -> Linear:
    made = Linear(3, 2)
    for name in ("weight", "bias"):
        shape = getattr(made, name).shape
        setattr(made, name, torch.nn.Parameter(torch.randn(shape), requires_grad=False))
    return made


def test_weights_visit_the_device_of_the_call_and_stay_at_home() -> None:
    module, meta = linear(), torch.device("meta")
    before = dict(module.named_parameters())
    result = call_on(meta, module, torch.empty(5, 3, device=meta))
    assert result.device == meta and result.shape == (5, 2)
    after = dict(module.named_parameters())
    assert all(after[n] is p and p.device.type == "cpu" for n, p in before.items())


def test_weights_that_are_there_are_not_copied() -> None:
    module, x = linear(), torch.randn(5, 3)
    seen = []
    module.register_forward_pre_hook(lambda m, _: seen.append(m.weight.data_ptr()))
    assert torch.equal(call_on(torch.device("cpu"), module, x), x @ module.weight.T + module.bias)
    assert seen == [module.weight.data_ptr()]


def test_a_module_at_home_answers_alike() -> None:
    module, x = linear(), torch.randn(5, 3)
    expected = module(x)
    send_home(module)
    assert torch.equal(module(x), expected)
