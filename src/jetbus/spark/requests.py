"""Set and call requests, counted per minute, path and caller.

Requests of a minute that is not over are carried one by one; percentiles are exact.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.clock import Clock
from jetbus.spark.schemas import CARRIED, TABLES

__all__ = ["MINUTE_US", "REQUESTS", "complete_requests", "open_requests", "request_rows"]

REQUESTS = ("set", "call")
"""The events that are requests."""
MINUTE_US = 60_000_000
_END = f"timestamp_micros(unix_micros(window_start) + {MINUTE_US}L)"
_PERCENTILES = {"us_p50": 0.5, "us_p90": 0.9, "us_p99": 0.99}


def request_rows(events: DataFrame, clock: Clock, carried: DataFrame | None = None) -> DataFrame:
    """Select the requests of some events one by one, and those carried, with ``before`` and ``now`` of their bus."""
    rows = events.where(f"event in {REQUESTS}").selectExpr(
        *("bus", f"timestamp_micros(unix_micros(ts) - pmod(unix_micros(ts), {MINUTE_US}L)) as window_start"),
        *("event", "path", "coalesce(nullif(regexp_replace(peer, '#[0-9]+$', ''), ''), peer) as caller"),
        "from_json(detail, 'outcome string, us bigint') as answer",
    )
    fresh = rows.selectExpr(
        *("bus", "window_start", "event", "path", "caller"),
        *("coalesce(answer.outcome = 'error', false) as failed", "answer.us"),
    )
    if carried is not None:
        return clock.join_now(fresh).union(clock.join_now(carried).where(f"{_END} > before and {_END} <= now"))
    return clock.join_now(fresh)


def complete_requests(rows: DataFrame) -> DataFrame:
    """Count the requests of minutes that are over."""
    counted = (
        rows.where(f"{_END} <= now")
        .groupBy("bus", "window_start", "event", "path", "caller")
        .agg(
            F.expr("count(*) as count"),
            F.expr("count_if(failed) as errors"),
            F.expr("count_if(failed) / count(*) as error_rate"),
            F.expr("min(us) as us_min"),
            F.expr("avg(us) as us_mean"),
            F.expr("max(us) as us_max"),
            F.expr(f"percentile(us, array{tuple(_PERCENTILES.values())}) as shares"),
        )
    )
    shares = [f"shares[{place}] as {name}" for place, name in enumerate(_PERCENTILES)]
    return counted.selectExpr("*", *shares).select(TABLES["requests"].names)


def open_requests(rows: DataFrame) -> DataFrame:
    """Select the requests of minutes that are not over."""
    return rows.where(f"{_END} > now").select(CARRIED["requests"].names)
