"""Set and call requests, counted per minute, path and caller.

Requests of a minute that is not over are carried one by one; percentiles are exact.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED, TABLES
from jetbus.spark.sql_text import run, select

__all__ = ["MINUTE_US", "REQUESTS", "complete_requests", "fold_requests", "open_requests", "request_rows"]

REQUESTS = ("set", "call")
"""The events that are requests."""
MINUTE_US = 60_000_000
_END = f"timestamp_micros(unix_micros(window_start) + {MINUTE_US}L)"
_PERCENTILES = {"us_p50": 0.5, "us_p90": 0.9, "us_p99": 0.99}


def request_rows(events: DataFrame, clock: BatchClock, carried: DataFrame | None = None) -> DataFrame:
    """Select the requests of some events one by one, and those carried, with ``before`` and ``now`` of their bus."""
    rows = select(
        "{events}",
        *("bus", f"timestamp_micros(unix_micros(ts) - pmod(unix_micros(ts), {MINUTE_US}L)) as window_start"),
        # A peer is named ``name#17``, with the number of its connection. Callers are counted by name.
        *("event", "path", "coalesce(nullif(regexp_replace(peer, '#[0-9]+$', ''), ''), peer) as caller"),
        "from_json(detail, 'outcome string, us bigint') as answer",
        where=f"event in {REQUESTS}",
    )
    fresh = clock.join_now(
        select(
            rows,
            *("bus", "window_start", "event", "path", "caller"),
            *("coalesce(answer.outcome = 'error', false) as failed", "answer.us"),
        )
    )
    if carried is not None:
        ends_now = f"{_END} > before and {_END} <= now"
        fresh = f"{fresh} union all {select(clock.join_now('{carried}'), '*', where=ends_now)}"
    return clock.run(fresh, events=events, carried=carried)


def complete_requests(rows: DataFrame) -> DataFrame:
    """Count the requests of minutes that are over."""
    keys = ("bus", "window_start", "event", "path", "caller")
    counted = select(
        "{rows}",
        *keys,
        *("count(*) as count", "count_if(failed) as errors", "count_if(failed) / count(*) as error_rate"),
        *("min(us) as us_min", "avg(us) as us_mean", "max(us) as us_max"),
        f"percentile(us, array{tuple(_PERCENTILES.values())}) as shares",
        where=f"{_END} <= now",
        group=", ".join(keys),
    )
    shares = [f"shares[{place}] as {name}" for place, name in enumerate(_PERCENTILES)]
    return run(select(select(counted, "*", *shares), *TABLES["requests"].names), rows=rows)


def open_requests(rows: DataFrame) -> DataFrame:
    """Select the requests of minutes that are not over."""
    return run(select("{rows}", *CARRIED["requests"].names, where=f"{_END} > now"), rows=rows)


def fold_requests(carried: DataFrame, clock: BatchClock) -> DataFrame:
    """Leave out requests of minutes that are over."""
    return open_requests(clock.run(clock.join_now("{carried}"), carried=carried))
