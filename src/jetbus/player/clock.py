"""The clock of a replay: which instant of the recording it is now. It never waits, but says how long to wait.

The position is a straight line from an origin, a pair of an instant in the recording and a time of this machine::

    position = from_us + (now - from_s) * speed

Every change of speed and every pause first moves the origin to the present position, so the position never jumps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from jetbus.journal.instants import US_PER_S


class Clock:
    """A clock that runs from an instant at a speed: 1 is real time, 0 or infinity is as fast as possible.

    At infinite speed it does not run by itself: it stands at the last event.

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
        """Seconds of the recording per second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        # Before anything is changed, since it may raise.
        speed = read_speed(speed)
        # From here on at the new speed; the time before passed at the old one.
        self.stand(self.position_us)
        self._speed = speed

    @property
    def paused(self) -> bool:
        """True while the clock stands still."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        # The origin moves when a pause starts and when it ends, so that the pause takes no time of the recording.
        self.stand(self.position_us)
        self._paused = paused

    @property
    def position_us(self) -> int:
        """The present instant of the recording."""
        if self._paused or self._speed == math.inf:
            return self._from_us
        return self._from_us + int((self._now() - self._from_s) * self._speed * US_PER_S)

    def stand(self, position_us: int) -> None:
        """Set the present instant."""
        self._from_us, self._from_s = position_us, self._now()

    def reach(self, instant_us: int) -> None:
        """Move a clock of infinite speed to the instant of the event that was just played."""
        if self._speed == math.inf:
            self._from_us = instant_us

    def delay_s(self, instant_us: int) -> float:
        """Return the time until an instant; infinity while the clock is paused."""
        if self._paused:
            return math.inf
        if self._speed == math.inf:
            return 0.0
        # Counted from the origin, not from the event before: one that was late does not delay all others.
        return (instant_us - self._from_us) / US_PER_S / self._speed - (self._now() - self._from_s)


def read_speed(speed: float) -> float:
    """Return a speed as a float; 0 stands for infinity.

    >>> read_speed(0), read_speed(2)
    (inf, 2.0)
    """
    # Written this way round, it refuses NaN as well.
    if not speed >= 0:
        raise ValueError(f"invalid speed {speed!r}; use 1 for real time, 0 for as fast as possible")
    return float(speed) or math.inf
