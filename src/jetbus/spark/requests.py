"""Set and call requests, counted per minute, path and caller.

Requests of a minute that is not over are carried one by one; percentiles are exact.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED
from jetbus.spark.sql_text import empty_frame, run

__all__ = ["MINUTE_US", "complete_requests", "fold_requests", "open_requests", "request_rows"]

MINUTE_US = 60_000_000


def request_rows(events: DataFrame, clock: BatchClock, carried: DataFrame | None = None) -> DataFrame:
    """Select the requests of some events one by one, and those carried that end now, with ``now`` of their bus."""
    known = carried or empty_frame(events.sparkSession, CARRIED["requests"].columns)
    return clock.with_time(run("request_rows", clock.args, events=events, carried=known))


def complete_requests(rows: DataFrame) -> DataFrame:
    """Count the requests of minutes that are over."""
    return run("requests", rows=rows)


def open_requests(rows: DataFrame) -> DataFrame:
    """Select the requests of minutes that are not over."""
    return run("open_requests", rows=rows)


def fold_requests(carried: DataFrame, clock: BatchClock) -> DataFrame:
    """Leave out requests of minutes that are over."""
    return open_requests(clock.with_time(carried))
