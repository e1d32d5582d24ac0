"""The clock of a replay, on a time that the test makes."""

from __future__ import annotations

import math

import pytest

from jetbus.player import Clock

START_US = 1_000_000_000


class Time:
    """Time as the test has it."""

    def __init__(self) -> None:
        self.s = 50.0

    def __call__(self) -> float:
        return self.s


def clock_at_start(speed: float = 1.0) -> tuple[Clock, Time]:
    time = Time()
    clock = Clock(speed, time)
    clock.stand(START_US)
    return clock, time


@pytest.mark.parametrize("speed", [0.5, 1.0, 10.0])
def test_it_runs_at_its_speed(speed: float) -> None:
    """In a second of real time as many seconds of the recording pass as the speed says."""
    clock, time = clock_at_start(speed)
    assert clock.delay_s(START_US + 3_000_000) == pytest.approx(3 / speed)
    time.s += 2
    assert clock.position_us == START_US + 2_000_000 * speed
    assert clock.delay_s(START_US + 3_000_000) == pytest.approx(3 / speed - 2)


@pytest.mark.parametrize("speed", [0, math.inf])
def test_as_fast_as_possible(speed: float) -> None:
    """Nothing is ever waited for, and the clock stands where the last event was."""
    clock, time = clock_at_start(speed)
    time.s += 10
    assert clock.position_us == START_US
    assert clock.delay_s(START_US + 5) == 0
    clock.reach(START_US + 5)
    assert clock.position_us == START_US + 5


def test_pause() -> None:
    """A clock that is paused stands still, and goes on from there."""
    clock, time = clock_at_start()
    time.s += 1
    clock.paused = True
    time.s += 100
    assert clock.position_us == START_US + 1_000_000
    assert clock.delay_s(START_US + 1_500_000) == math.inf
    clock.paused = False
    assert clock.delay_s(START_US + 1_500_000) == pytest.approx(0.5)


def test_another_speed() -> None:
    """A change of speed holds from the present instant on."""
    clock, time = clock_at_start()
    time.s += 1
    clock.speed = 4
    time.s += 1
    assert clock.position_us == START_US + 5_000_000


@pytest.mark.parametrize("speed", [-1, math.nan])
def test_impossible_speeds(speed: float) -> None:
    """Nothing is played backwards."""
    with pytest.raises(ValueError, match="invalid speed"):
        Clock(speed)
