"""Times of candidates on a device whose clock, and whose host's, are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ostinato.kernels import timing

CYCLES_PER_S = 2e9
SPIN_S = timing.SPIN_CYCLES / CYCLES_PER_S


class Machine:
    """A device that works in order behind a host whose launches take ``launch_s`` each."""

    def __init__(self, launch_s: float) -> None:
        self.launch_s = launch_s
        self.host_s = self.device_s = 0.0
        self.spins: list[int] = []

    def launch(self, busy_s: float) -> None:
        self.host_s += self.launch_s
        self.device_s = max(self.device_s, self.host_s) + busy_s

    def spin(self, cycles: int) -> None:
        self.spins.append(cycles)
        self.launch(cycles / CYCLES_PER_S)

    def event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._at_s = -1.0

    def record(self) -> None:
        self._at_s = max(self._machine.device_s, self._machine.host_s)

    def query(self) -> bool:
        return self._at_s <= self._machine.host_s

    def synchronize(self) -> None:
        self._machine.host_s = max(self._machine.host_s, self._at_s)

    def elapsed_time(self, end: Event) -> float:
        return (end._at_s - self._at_s) * 1e3


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Machine]:
    def make(launch_s: float) -> Machine:
        made = Machine(launch_s)
        monkeypatch.setattr(torch.cuda, "Event", made.event)
        monkeypatch.setattr(torch.cuda, "_sleep", made.spin)
        return made

    return make


@pytest.mark.parametrize("launch_s", [5e-6, 100e-6, 300e-6])
def test_launches_do_not_count_however_slow_the_host_is(
    launch_s: float, machine: Callable[[float], Machine]
) -> None:
    """A candidate of five launches that keeps the device busy for less than one of one launch."""
    made = machine(launch_s)

    def many() -> None:
        for _ in range(5):
            made.launch(10e-6)

    found = timing.device_seconds([lambda: made.launch(60e-6), many])
    assert found == pytest.approx([60e-6, 50e-6])


def test_a_spin_that_was_long_enough_is_kept(machine: Callable[[float], Machine]) -> None:
    made = machine(SPIN_S / 4)
    timing.device_seconds([lambda: made.launch(1e-6)])
    assert made.spins == [timing.SPIN_CYCLES * n for n in (1, 2, 4, 4, 4, 4, 4)]


def test_what_waits_for_the_device_itself_is_timed_all_the_same(
    machine: Callable[[float], Machine],
) -> None:
    made = machine(1e-6)

    def waits() -> None:
        made.launch(100e-6)
        made.host_s = made.device_s

    seconds, spin_cycles = timing.behind_a_spin([waits] * 3, timing.SPIN_CYCLES)
    assert spin_cycles == 16 * timing.SPIN_CYCLES == made.spins[-1] and len(made.spins) == 5
    assert seconds == pytest.approx(3 * 100e-6, rel=0.05)
