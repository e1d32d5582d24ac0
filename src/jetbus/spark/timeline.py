"""The timeline: the events of every path in order, each with its successor. One sort serves several tables.

For each path the rows follow one another by seq, after the row that was carried from the batch before:

    carried   change 10      (open: a value in force, a stay that has begun)
    seq 17    change 12      ends the value 10                      valid_to of the row above
    seq 19    remove         ends the value 12 and the stay         the row of seq 17 is the last of its stay
    seq 23    add 0          starts a value and a stay              open: carried to the next batch
      ~~ cut ~~              ends all rows open at that moment

*history* has a row per value, *availability* a row per stay: the time from an ``add`` to whatever ends it other than a
change. The totals of a stay run along the rows, so that the last row of a stay has them all, and a path that is still
there needs just one row to go on from. Everything is a window function over one order of rows, so Spark sorts once.

``sql/timeline_rows.sql`` brings the rows together, ``sql/descriptions.sql`` finds the description of each,
``sql/timeline.sql`` puts them in order; the selections at the end are files of their own.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jetbus.journal.events import TREE_EVENTS
from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED
from jetbus.spark.sql_text import empty_frame, run

__all__ = ["SIGNS", "availability", "history", "line_rows", "open_paths", "timeline"]

SIGNS = TREE_EVENTS
"""The events that are signs of life of a path, or its end."""


def timeline(
    events: DataFrame,
    clock: BatchClock,
    carried: DataFrame | None = None,
    known: DataFrame | None = None,
    *,
    has_schemas: bool = True,
) -> DataFrame:
    """Order the events of each path, each with the end of its value; ``carried`` has the open rows of the batch before.

    ``known`` has the descriptions that were carried; without ``has_schemas`` there are none, nor among the events.

    Besides the columns of an event: ``unit``, ``misfit``, ``carried``, ``valid_to`` and ``ended_by`` (null while it is
    open), and ``stay``, the totals of the stay on the last row of each, with ``is_last`` where nothing follows.
    """
    spark = events.sparkSession
    rows = run(
        "timeline_rows",
        events=events,
        carried=carried or empty_frame(spark, CARRIED["paths"].columns),
        known=known or empty_frame(spark, CARRIED["elements"].columns),
        cuts=clock.cuts,
    )
    return run("timeline", rows=run("descriptions", rows=rows) if has_schemas else rows)


# -- the tables


def history(line: DataFrame) -> DataFrame:
    """Select one row per value of a state from a timeline; ``valid_to`` is null while it is in force."""
    return run("history", line=line)


def availability(line: DataFrame) -> DataFrame:
    """Select one row per stay of a state or method from a timeline; ``until`` is null while it is there."""
    return run("availability", line=line)


def open_paths(line: DataFrame) -> DataFrame:
    """Select the rows that the next batch goes on from: of each path that is there its last, or that it has gone."""
    return run("open_paths", line=line)


def line_rows(line: DataFrame) -> DataFrame:
    """Select the rows of a timeline that any of these needs, in the columns of history and a few more."""
    return run("line_rows", line=line)
