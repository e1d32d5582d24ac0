"""The clock of a replay: which instant of the recording it is now. It does not wait; it tells how long to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from jetbus.journal.instants import US_PER_S


class Clock:
    """Runs from an instant on, at a speed; 1 is as it was, 0 or infinity as fast as possible.

    As fast as possible it does not run by itself: it stands where the last event was.

    >>> clock = Clock(2.0, now=lambda: 100.0)
    >>> clock.stand(5_000_000)
    >>> clock.delay_s(7_000_000)
    1.0
    """

    def __init__(self, speed: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._speed = read_speed(speed)
        self._from_us = 0
        self._from_s = now()
        self._paused = False

    @property
    def speed(self) -> float:
        """Seconds of the recording in a second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        speed = read_speed(speed)
        self.stand(self.position_us)
        self._speed = speed

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self.stand(self.position_us)
        self._paused = paused

    @property
    def position_us(self) -> int:
        """The instant of the recording."""
        if self._paused or self._speed == math.inf:
            return self._from_us
        return self._from_us + int((self._now() - self._from_s) * self._speed * US_PER_S)

    def stand(self, position_us: int) -> None:
        """It is this instant now."""
        self._from_us, self._from_s = position_us, self._now()

    def reach(self, instant_us: int) -> None:
        """Something of this instant has happened; that moves a clock that does not run by itself."""
        if self._speed == math.inf:
            self._from_us = instant_us

    def delay_s(self, instant_us: int) -> float:
        """How long it is until an instant; infinity for a clock that stands still."""
        if self._paused:
            return math.inf
        if self._speed == math.inf:
            return 0.0
        return (instant_us - self._from_us) / US_PER_S / self._speed - (self._now() - self._from_s)


def read_speed(speed: float) -> float:
    """A speed as the clock takes it: 0 is infinity.

    >>> read_speed(0), read_speed(2)
    (inf, 2.0)
    """
    if not speed >= 0:
        raise ValueError(f"a speed of {speed!r} cannot be played; 1 is as it was, 0 as fast as possible")
    return float(speed) or math.inf
