"""Mutations of what only a GPU can show, beside those of ``tests.mutations``."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.mutations import assert_fails_under, mutation, mutations

__all__ = ["assert_fails_under", "mutations"]


@mutation("gate.off")
def _gate_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.examination import Examination
    from ostinato.recording.gate import Verdict

    monkeypatch.setattr(Examination, "verdict", lambda self: Verdict(True, 0.0, "gate off"))


@mutation("cuda.streams_are_not_joined")
def _streams_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.cuda import CudaBackend

    monkeypatch.setattr(CudaBackend, "join", lambda self: None)


@mutation("cuda.kernels_are_not_counted")
def _kernels_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import cuda_census

    def call_only(call: Any) -> None:
        call(cuda_census.KernelCount())

    monkeypatch.setattr(cuda_census, "count_kernels", call_only)


@mutation("cuda.nodes_are_not_judged")
def _nodes_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import cuda_census

    original = cuda_census.of_graph

    def lenient(raw_graph: int) -> cuda_census.GraphCensus:
        return original(raw_graph)._replace(forbidden="")

    monkeypatch.setattr(cuda_census, "of_graph", lenient)


@mutation("cuda.no_warm_up")
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.cuda import CudaPool

    monkeypatch.setattr(CudaPool, "_run", lambda self, body, splitter=None: None)


@mutation("cuda.collection_goes_on")
def _collection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import cuda

    monkeypatch.setattr(cuda, "collection_held_off", contextlib.nullcontext)


@mutation("cuda_sync.not_held_off")
def _device_wide_waits_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import cuda_sync

    monkeypatch.setattr(cuda_sync, "install", lambda: None)


@mutation("cuda_heal.off")
def _healing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken graph is kept and nothing is put right."""
    from ostinato.recording import cuda_heal

    def keep(graph: Any, pool_id: Any, generators: Any) -> None:
        cuda_heal.broken_graphs.append(graph)

    monkeypatch.setattr(cuda_heal, "heal", keep)


@mutation("cuda_census.cupti_stays_attached")
def _cupti_stays_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import cuda_census

    library = cuda_census._cupti()

    class Attached:
        """The library without its last step."""

        def __getattr__(self, name: str) -> Any:
            if name == "cuptiFinalize":
                return lambda: 0
            return getattr(library, name)

    monkeypatch.setattr(cuda_census, "_cupti", lambda: Attached() if library else None)


@mutation("graphed.callers_order")
def _callers_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up goes from the smallest to the largest, the order that a ladder is written in."""
    from ostinato.recording import graphed

    largest_first = graphed._largest_first
    monkeypatch.setattr(graphed, "_largest_first", lambda calls: largest_first(calls)[::-1])


@mutation("upload.slots_are_not_waited_for")
def _slots_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording import upload

    monkeypatch.setattr(upload._Slot, "wait", lambda self: None)


@mutation("results.are_borrowed")
def _results_are_borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.results import Results

    monkeypatch.setattr(Results, "hand_out", Results.borrow)


@mutation("probe.leaves_its_trace")
def _probe_leaves_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.probe import Probe

    monkeypatch.setattr(Probe, "restore", lambda self: None)


@mutation("ledger.addresses_are_not_watched")
def _addresses_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.ledger import Ledger

    monkeypatch.setattr(Ledger, "check", lambda self: self.generation)


@mutation("cuda_branches.arguments_are_not_held")
def _arguments_of_branches_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.cuda_branches import Branches

    original = Branches.aside

    def aside(self: Branches, fn: Any, args: tuple[Any, ...]) -> Any:
        result = original(self, fn, args)
        self._held = [(None, held) for _, held in self._held]
        return result

    monkeypatch.setattr(Branches, "aside", aside)


@mutation("cuda_branches.are_not_joined")
def _branches_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.recording.cuda_branches import Branches

    monkeypatch.setattr(Branches, "join", lambda self: self._held.clear())
