"""Numbers over time made one a window: how many came, their extremes, and their mean.

A value counts in the window in which it came, and weighs in every window for as long as it was in force there. A window
in which none came is left out. That is what the rollups of the pipeline do as well, so that both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from jetbus.journal.instants import US_PER_S

TIME_WEIGHTED = "mean"
"""The aggregate that needs to know how long each value was in force."""


class Reading(NamedTuple):
    """A value from an instant on, until the next reading; None is no value."""

    at_us: int
    value: Any
    came: bool = True
    """Whether it came then, or was in force already."""


class Window:
    """What is known of one window."""

    def __init__(self) -> None:
        self.came: list[float] = []
        self._area = 0.0
        self._known_us = 0

    def weigh(self, number: float, us: int) -> None:
        """A number was in force for so long."""
        self._area += number * (us / US_PER_S)
        self._known_us += us

    @property
    def time_mean(self) -> float | None:
        """The mean over the time in which a number was in force; None if that is no time."""
        return self._area / (self._known_us / US_PER_S) if self._known_us else None


AGGREGATES: dict[str, Callable[[Window], float | None]] = {
    "count": lambda window: len(window.came),
    TIME_WEIGHTED: lambda window: window.time_mean,
    "avg": lambda window: sum(window.came) / len(window.came),
    "min": lambda window: min(window.came),
    "max": lambda window: max(window.came),
    "sum": lambda window: sum(window.came),
    "first": lambda window: window.came[0],
    "last": lambda window: window.came[-1],
}


def number_of(value: Any) -> float | None:
    """A value as a number: true is 1 and false is 0, what is neither is none."""
    return value if isinstance(value, int | float) else None


def windows(readings: Iterable[Reading], every_us: int, end_us: int) -> Iterator[tuple[int, Window]]:
    """The windows in which a number came, with the instants of their starts; nothing is known from ``end_us`` on."""
    found: dict[int, Window] = {}
    line = list(readings)
    for reading, following in zip(line, [*line[1:], None], strict=True):
        number = number_of(reading.value)
        if number is None:
            continue
        at_us, until_us = reading.at_us, max(reading.at_us, following.at_us if following else end_us)
        head, tail = at_us - at_us % every_us, until_us - until_us % every_us
        window = found.setdefault(head, Window())
        if reading.came:
            window.came.append(int(number) if isinstance(number, bool) else number)
        window.weigh(number, min(until_us, head + every_us) - at_us)
        if tail > at_us:  # the windows between have no row: nothing came there
            found.setdefault(tail, Window()).weigh(number, until_us - tail)
    return ((start, window) for start, window in sorted(found.items()) if window.came)
