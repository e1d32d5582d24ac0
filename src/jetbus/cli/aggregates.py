"""Aggregates of numbers over windows of time.

A window has two kinds of contents, which the aggregates use differently:

    samples     values that arrived within the window: count, avg, min, max, sum, first, last, median, p90, p99
    durations   how long each value was in force within the window: the time-weighted mean

    value   5 |      ______            A value that arrives in the first window is in force until the next
            3 |_____|      |______     value, so it also weighs in the second window. A window in which no
              |   window 1   |  ...    value arrived is left out.

The rollups of ``jet pipeline`` use the same definitions, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from jetbus.journal.instants import US_PER_S
from jetbus.json_types import Json

TIME_WEIGHTED = "mean"
"""The aggregate that needs to know how long each value was in force."""


class Reading(NamedTuple):
    """Value that is in force from an instant until the next reading; None if no value is known."""

    at_us: int
    value: Json
    arrived: bool = True
    """False for a value that was in force already when the range began."""


class Window:
    """Numbers that arrived within one window, and how long each number was in force in it."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._durations: list[tuple[float, int]] = []

    def add_sample(self, number: float) -> None:
        """Add a number that arrived within the window."""
        self.samples.append(number)

    def add_duration(self, number: float, duration_us: int) -> None:
        """Add the time for which a number was in force."""
        self._durations.append((number, duration_us))

    def compute_mean(self) -> float | None:
        """Return the time-weighted mean; None if no number was in force for any time."""
        return compute_time_weighted_mean(self._durations)


def compute_time_weighted_mean(durations: Iterable[tuple[float, int]]) -> float | None:
    """Return the mean of numbers, each weighted by its duration in microseconds; None if the durations are zero.

    >>> compute_time_weighted_mean([(10.0, 3_000_000), (20.0, 1_000_000)])
    12.5
    """
    area, total_us = 0.0, 0
    for number, duration_us in durations:
        area += number * (duration_us / US_PER_S)
        total_us += duration_us
    return area / (total_us / US_PER_S) if total_us else None


def compute_percentile(samples: Iterable[float], percent: float) -> float:
    """Return a percentile, interpolated between the two nearest samples, as SQL's ``percentile`` does.

    >>> compute_percentile([40, 10, 20, 30], 50), compute_percentile([7], 99)
    (25.0, 7)
    """
    ordered = sorted(samples)
    position = (len(ordered) - 1) * percent / 100
    lower, fraction = ordered[int(position)], position % 1
    # The last sample is without a neighbour to interpolate with, and the sample itself keeps its type.
    return lower if not fraction else lower + (ordered[int(position) + 1] - lower) * fraction


# No function meets an empty list of samples: windows without any are left out before.
AGGREGATES: dict[str, Callable[[Window], float | None]] = {
    "count": lambda window: len(window.samples),
    TIME_WEIGHTED: lambda window: window.compute_mean(),
    "avg": lambda window: sum(window.samples) / len(window.samples),
    "min": lambda window: min(window.samples),
    "max": lambda window: max(window.samples),
    "sum": lambda window: sum(window.samples),
    "first": lambda window: window.samples[0],
    "last": lambda window: window.samples[-1],
    "median": lambda window: compute_percentile(window.samples, 50),
    "p90": lambda window: compute_percentile(window.samples, 90),
    "p99": lambda window: compute_percentile(window.samples, 99),
}


def to_number(value: Json) -> float | None:
    """Return a number as it is, true as 1 and false as 0, and None for anything else."""
    return value if isinstance(value, int | float) else None


def split_into_windows(readings: Iterable[Reading], every_us: int, end_us: int) -> Iterator[tuple[int, Window]]:
    """Yield the start and contents of each window in which a number arrived; nothing is known from ``end_us`` on."""
    windows: dict[int, Window] = {}
    ordered = list(readings)
    for reading, following in zip(ordered, [*ordered[1:], None], strict=True):
        number = to_number(reading.value)
        if number is None:
            continue
        # A value is in force until the next one; the last one until nothing is known any more.
        at_us, until_us = reading.at_us, max(reading.at_us, following.at_us if following else end_us)
        first, last = at_us - at_us % every_us, until_us - until_us % every_us
        window = windows.setdefault(first, Window())
        if reading.arrived:
            # first and last return a sample as it is, and should print 1 instead of true.
            window.add_sample(int(number) if isinstance(number, bool) else number)
        window.add_duration(number, min(until_us, first + every_us) - at_us)
        if last > at_us:
            # No value arrived in the windows between these two, so they have no row and need no durations.
            windows.setdefault(last, Window()).add_duration(number, until_us - last)
    return ((start, window) for start, window in sorted(windows.items()) if window.samples)
