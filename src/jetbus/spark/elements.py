"""Elements: the descriptions of states and methods over time, and the one that is valid for each value.

The ``add`` of an element has its schema in ``detail``, a later ``describe`` has a new one. A value is described by the
last of these before it, unless the element has gone since, by a ``remove`` or by a cut:

    seq     17 add   18 change   19 describe   20 change   ~~ cut ~~   31 change
    unit    rpm      rpm                       Hz                      none

SQL has no words for a schema within a schema: of objects and lists only the type counts. ``sql/descriptions.sql`` finds
the description of each row, among the rows of the stage that asks, so that one sort serves both. Between batches the
table ``carried_elements`` has the newest description of each element; elements without one are not in it, so a bus
without descriptions pays nothing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED
from jetbus.spark.sql_text import empty_frame, run

__all__ = ["closed_elements", "element_rows", "open_elements", "valid_elements"]


def element_rows(events: DataFrame, clock: BatchClock, known: DataFrame | None = None) -> DataFrame:
    """Order the descriptions of each element and say when each ended; ``known`` has those that were carried.

    ``closed_elements`` and ``open_elements`` select the rows to keep.
    """
    carried = known or empty_frame(events.sparkSession, CARRIED["elements"].columns)
    return run("element_rows", events=events, known=carried, cuts=clock.cuts)


def closed_elements(rows: DataFrame, *, and_open: bool = False) -> DataFrame:
    """Select the descriptions that are no longer valid, or all of them, as rows of the table of elements."""
    return run("elements", rows=rows if and_open else rows.where("valid_to is not null"))


def open_elements(rows: DataFrame) -> DataFrame:
    """Select the rows to carry: descriptions that are valid now, and those carried before that no longer are."""
    return run("open_elements", rows=rows)


def valid_elements(known: DataFrame) -> DataFrame:
    """Turn the newest descriptions that were carried into rows of the table of elements."""
    return run("elements", rows=known.selectExpr("*", "cast(null as timestamp) as valid_to"))
