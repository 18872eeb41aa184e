"""What a runner offers besides serving regions."""

from __future__ import annotations

import torch

import ostinato
from ostinato import state
from ostinato.recording.config import GraphConfig
from ostinato.recording.region import Region
from ostinato.recording.runner import Runner


def test_a_direct_call_beside_recordings_runs_in_their_pool() -> None:
    config = GraphConfig(min_hits=1)
    runner = Runner.on(torch.device("cpu"), config)
    served = runner.serve(Region("double", lambda x: x * 2), config)
    x = torch.arange(4.0)

    def job() -> tuple[object, list[float]]:
        return state.current(), (x * 2).tolist()

    before = runner.lane.run_when_idle(lambda: runner.run_in_pool(job)).result()[0]
    assert before == (None, [0, 2, 4, 6]), "nothing is recorded: there is no pool"
    with torch.inference_mode(), ostinato.route("exact"):
        held = served.call((x,), {})
    activity, values = runner.lane.run_when_idle(lambda: runner.run_in_pool(job)).result()[0]
    assert isinstance(activity, state.Activity) and activity.phase is state.Phase.WARM_UP
    assert values == held.tolist() == [0, 2, 4, 6]
    runner.close()
