"""Rollups: the numbers of each state per window of 1 s, 1 min and 1 h, from the values of its history.

A value counts in the window in which it came, and weighs in every window it was in force for. Windows in which no value
came have no row, so a value matters to two windows of a size at most: the one it came in (its head) and the one it
ended in (its tail).

    window      |         |         |         |
    value          o===================x               o came, x ended
    weight         ^ head ^         ^tail^

Windows are summed up from **parts**, which only have to be added. A batch makes the parts of its own values; those of
windows that are not complete are carried, and added up when time has come to the end of the window. A value that is
still in force when its batch ends is taken to last until its window ends; if it ends earlier, the batch in which it
does adds a part with a negative weight. So a batch reads nothing about windows that it does not complete.

Parts of a minute and an hour are made from those of a second: the head of a value lies in one of each.

A value of bad quality does not count as a value: it is in no figure, and the time it was in force is unknown. An
uncertain one counts; ``good_us`` says how much of the known time was better than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame

from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED, TABLES
from jetbus.spark.sql_text import empty_frame, run

__all__ = ["WINDOWS_US", "complete_windows", "fold_windows", "open_windows", "window_parts", "windows_of_length"]

WINDOWS_US: Mapping[str, int] = MappingProxyType({"1s": 1_000_000, "1m": 60_000_000, "1h": 3_600_000_000})
"""The sizes of windows, in microseconds, by their names; each is a multiple of the one before."""


def window_parts(values: DataFrame, clock: BatchClock, carried: DataFrame | None = None) -> DataFrame:
    """Sum up windows from rows of history, among them those in force, and from the parts that were carried.

    Columns are those of the carried windows, with ``now`` of the bus. Rows of history up to the last event before this
    batch are known to the parts already.
    """
    known = carried or empty_frame(values.sparkSession, CARRIED["windows"].columns)
    return clock.with_time(run("window_parts", clock.args, values=values, carried=known))


def complete_windows(parts: DataFrame) -> DataFrame:
    """Select the windows that are complete, as rows of the table of rollups."""
    return run("rollups", parts=parts)


def open_windows(parts: DataFrame) -> DataFrame:
    """Select the parts of windows that are not complete."""
    return run("open_windows", parts=parts)


def fold_windows(carried: DataFrame, clock: BatchClock) -> DataFrame:
    """Add up the parts of each window that is still open, and leave out all others."""
    return run("fold_windows", parts=clock.with_time(carried))


def windows_of_length(values: DataFrame, clock: BatchClock, size: str, size_us: int) -> DataFrame:
    """Return the complete windows of any length, from all rows of history at once, as rows of the table of rollups.

    A pipeline keeps the windows of ``WINDOWS_US`` only, since it has to carry parts of each size; a look at a whole log
    needs no parts.
    """
    rows = clock.with_time(run("windows_of_length", {"size": size, "size_us": size_us}, values=values))
    return rows.where("window_end <= now").select(*TABLES["rollups"].names)
