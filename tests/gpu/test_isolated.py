"""Programs in processes of their own, as they stand and with one protection switched off."""

from __future__ import annotations

import json

import pytest

from tests.gpu.isolation import Processes

pytestmark = [pytest.mark.device, pytest.mark.timeout(300)]

PROGRAMS = [
    "failure:half_way",
    "failure:other_keys_go_on",
    "failure:unjoined_side_stream",
    "failure:body_raises",
    "memory:cycles_add_nothing",
    "memory:thirty_two_shapes",
    "memory:a_thousand_shapes",
    "first_use:libraries",
    "first_use:triton_kernel",
    "first_use:inference_mode_then_outside",
    "first_use:warm_up_before_the_capture",
    "foreign:profiler_still_sees_kernels",
    "foreign:recording_under_a_profiler",
    "foreign:launches_are_not_slowed",
    "foreign:garbage_outlives_the_capture",
    "foreign:other_threads_during_captures",
    "foreign:another_thread_synchronises",
]

SEEN_TO_FAIL = [
    ("failure:half_way", "cuda_heal.off"),
    ("failure:body_raises", "cuda_heal.off"),
    ("memory:thirty_two_shapes", "graphed.callers_order"),
    ("first_use:warm_up_before_the_capture", "cuda.no_warm_up"),
    ("foreign:launches_are_not_slowed", "cuda_census.cupti_stays_attached"),
    ("foreign:garbage_outlives_the_capture", "cuda.collection_goes_on"),
    ("foreign:another_thread_synchronises", "cuda_sync.not_held_off"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, processes: Processes) -> None:
    figures = processes.verdict(program).check()
    print(program, json.dumps(figures))


@pytest.mark.parametrize(("program", "mutation"), SEEN_TO_FAIL)
def test_program_fails_without_its_protection(
    program: str, mutation: str, processes: Processes
) -> None:
    processes.verdict(program, mutation).check_failed()
