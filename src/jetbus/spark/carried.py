"""Rows that are carried from batch to batch, in tables that only grow until they are folded.

A batch appends rows for the paths that it touched and leaves all others alone, so that its cost does not depend on the
number of paths. Of the rows of a path, or of an alarm at a path, the newest counts. Now and then a table is **folded**:
rewritten with the rows that count, when more has been appended than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.clock import Position
from jetbus.spark.sql_text import list_texts, map_buses, run

__all__ = [
    "after_cuts",
    "newest_alarms",
    "newest_elements",
    "newest_paths",
    "only_touched",
    "open_stays",
    "open_values",
]


def after_cuts(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Leave out the rows of paths that a cut of their bus has ended since."""
    return run("after_cuts", _cut_seqs(positions), rows=rows)


def only_touched(
    rows: DataFrame, touching: DataFrame, cut_buses: Sequence[str], *, few: bool = False, is_pending: str = "false"
) -> DataFrame:
    """Keep the rows of paths that some events touch, of buses that were cut, and those that are pending.

    With ``few`` events their paths are sent to every executor, instead of sorting all that was carried.
    """
    paths = touching.select("bus", "path").distinct()
    marked = rows.selectExpr("*", f"{is_pending} as is_pending")
    args = {"cut_buses": list_texts(cut_buses)}
    return run("only_touched", args, rows=marked, paths=F.broadcast(paths) if few else paths)


def newest_paths(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Keep one row for each path that is there."""
    return run("newest_paths", _cut_seqs(positions), rows=rows)


def newest_elements(rows: DataFrame, positions: Mapping[str, Position]) -> DataFrame:
    """Keep one row for each element that is described."""
    return run("newest_elements", _cut_seqs(positions), rows=rows)


def newest_alarms(rows: DataFrame) -> DataFrame:
    """Keep one row for each alarm that is raised, or pending for its hold time."""
    return run("newest_alarms", rows=rows)


def open_values(paths: DataFrame) -> DataFrame:
    """Turn the newest rows of paths into rows of history: the values in force."""
    return run("open_values", paths=paths)


def open_stays(paths: DataFrame) -> DataFrame:
    """Turn the newest rows of paths into rows of availability: the states and methods that are there."""
    return run("open_stays", paths=paths)


def _cut_seqs(positions: Mapping[str, Position]) -> dict[str, Column]:
    return {"cut_seqs": map_buses({bus: position.cut_seq for bus, position in positions.items()})}
