"""The policy benchmark on the CPU: every section runs, and its figures are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ostinato
from ostinato.bench import measure as measuring
from ostinato.bench import policy as bench
from ostinato.bench.policy_kernels import kernels_apart
from ostinato.bench.policy_package import load_variant, write_variant
from ostinato.bench.policy_peers import Peers
from ostinato.bench.unfused import unfused
from ostinato.errors import ConfigError
from ostinato.policy.flux3_action.random_package import published_droid

CPU = torch.device("cpu")
TINY = "tiny-flux3-action"


class Names(TorchDispatchMode):
    """Our operators among everything that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "ostinato":
            self.ours.add(func._schema.name.removeprefix("ostinato::"))
        return func(*args, **(kwargs or {}))


def settings(variant: str, **more: Any) -> bench.Settings:
    return bench.Settings(variant, CPU, model=TINY, **({"with_kernels": False} | more))


def test_every_section_of_a_tiny_policy() -> None:
    kept: list[str] = []
    rows = bench.measure(
        settings("sd-fp8r", repeats=1, compile_mode=None), lambda r: kept.append(json.dumps(r))
    )
    assert "errors" not in rows
    assert json.loads(kept[-1]) == rows and "total" not in json.loads(kept[0])
    assert [row["equal_bytes"] for row in rows["exactness"]] == [True] * 4
    assert {row["bucket"] for row in rows["exactness"]} == {"80 tokens", "160 tokens"}
    for row in (*rows["exactness"], {"recording": rows["total"]["route"]}):
        assert set(row["recording"].values()) == {"exact: recorded"}
    regions = rows["ready"]["regions"]
    assert (regions["observation"]["num_recordings"], regions["loop"]["num_recordings"]) == (1, 2)
    assert rows["ready"]["verdict"] == "bit-exact"
    for peer in ("unfused", "direct", "recorded"):
        assert rows["total"][peer]["num_calls"] == 1 and rows["total"][peer]["median_ms"] > 0
        assert set(rows["stages"][peer]) == {"observation", "denoise"}
    assert set(rows["ratios"]) == {"recorded_to_unfused", "recorded_to_direct"}


def test_kernels_are_taken_in_another_process() -> None:
    found = kernels_apart("sd", CPU, TINY)
    nothing = {"observation": {}, "denoise": {}}  # the CPU has none
    assert found == {"direct": nothing, "unfused": nothing}
    with pytest.raises(RuntimeError, match="expected base, gd, sd"):
        kernels_apart("large", CPU, TINY)


def test_memory_alone_measures_no_time() -> None:
    rows = bench.measure(settings("sd", only_memory=True, offloads_text=True))
    assert "errors" not in rows and rows["offloads_text"]
    assert {"ready", "exactness", "peak memory"} < set(rows) and "total" not in rows


def test_a_section_that_fails_is_an_error_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_idle", lambda *_: 1 / 0)
    rows = bench.measure(settings("sd", repeats=1, compile_mode=None))
    assert rows["errors"]["idle"]["error"].startswith("ZeroDivisionError")
    assert rows["total"]["recorded"]["num_calls"] == 1


def test_unfused_runs_no_operator_of_ours_but_attention_and_gives_the_same_bytes() -> None:
    with Peers(load_variant("sd", CPU, TINY)) as peers:
        with Names() as fused:
            expected = peers.direct.infer(peers.short)
        assert {"modulate", "norm_rope", "swiglu", "gate_residual"} < fused.ours
        with Names() as names:
            result = peers.unfused.infer(peers.short)
        assert names.ours == {"neighbourhood_attention", "dense_attention"}
        assert result["model_actions"].tobytes() == expected["model_actions"].tobytes()
        with Names() as again:  # what was switched is switched back
            peers.direct.infer(peers.short)
    assert {"modulate", "norm_rope", "swiglu", "gate_residual"} < again.ours


def test_unfused_switches_back_after_an_error() -> None:
    from ostinato.kernels import modulate

    before = modulate._modulate
    with pytest.raises(ZeroDivisionError), unfused():
        assert modulate._modulate is not before
        raise ZeroDivisionError
    assert modulate._modulate is before


@pytest.mark.parametrize("variant", ["sd", "base"])
def test_the_compiled_peer_traces_whole_and_answers_alike(variant: str) -> None:
    with Peers(load_variant(variant, CPU, TINY)) as peers:
        compiled = peers.add_compiled("default", backend="eager")
        assert [peer.name for peer in peers.all] == ["unfused", "direct", "compiled", "recorded"]
        result, expected = (p.infer(peers.short) for p in (compiled, peers.direct))
        assert result["model_actions"].tobytes() == expected["model_actions"].tobytes()
        stages = compiled.stages(peers.short)
        stages.observe()
        chunk = torch.from_numpy(expected["model_actions"])
        assert torch.equal(stages.denoise(), chunk)
    torch.compiler.reset()


def test_a_written_variant_is_what_it_says(tmp_path: Path) -> None:
    for variant in ("base", "sd-fp8r"):
        write_variant(tmp_path, variant, model=TINY, draw_on=CPU)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [
        "text_encoder",
        "vae",
        "variants",
    ]
    base = ostinato.load_policy(tmp_path, device="cpu", enable_cuda_graph=False)
    fast = ostinato.load_policy(tmp_path, device="cpu", variant="sd-fp8r", enable_cuda_graph=False)
    assert (base.config.num_inference_steps, base.config.guidance()) == (4, (4.0, 1.0))
    assert (fast.config.num_inference_steps, fast.config.guidance()) == (1, (1.0, 1.0))
    assert (base.config.quantization, fast.config.quantization) == (None, "fp8r")


def test_all_six_variants_have_published_sizes() -> None:
    assert len(bench.NAMES) == 6
    steps = {name: published_droid(name)["package"]["num_inference_steps"] for name in bench.NAMES}
    assert steps == {"base": 4, "base-fp8r": 4, "gd": 4, "gd-fp8r": 4, "sd": 1, "sd-fp8r": 1}
    with pytest.raises(ConfigError, match="expected one of base, base-fp8r"):
        bench.Settings("large", CPU)


def test_percentiles_are_by_nearest_rank() -> None:
    found = measuring.spread([float(i) for i in range(1, 301)])
    assert found == {
        "median_ms": 150.5,
        "p90_ms": 270.0,
        "p95_ms": 285.0,
        "p99_ms": 297.0,
        "num_calls": 300,
    }


def test_calls_take_turns_until_the_time_is_used_up() -> None:
    order: list[str] = []
    calls = {name: lambda n=name: order.append(n) for name in "ab"}
    found = measuring.in_turns(calls, CPU, 3, within_s=60.0)
    assert "".join(order) == "ababab" and found["a"]["num_calls"] == 3
    assert measuring.in_turns(calls, CPU, 100, within_s=0.0)["b"]["num_calls"] == 1
