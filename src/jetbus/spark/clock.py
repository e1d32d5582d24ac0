"""The clock of each bus and the cuts in its record: the facts about a batch that single rows do not tell.

Time never goes backwards from one event of a bus to the next. So nothing is ever late, and the watermark of a bus is
the newest instant it told of: a window that ends at or before it is complete. Rows of event ``time``, which format
``jet`` gives with its option ``clock``, tell of time that passed without events. Buses do not wait for one another.

A **cut** ends every value of a bus at once. A daemon that stops takes its tree with it; one that starts again after a
crash tells that nothing was known since the event before; a gap in the record says since when. Time after a cut is
unknown until the next event of a path, and never part of a mean.

    seq      1      2      3 (stop)      4 (start)     5      6 (gap)      7
    epoch   |<---- epoch 1 ---->|<- epoch 2 ->|<---- epoch 3 ---->|    no cut yet

Every event belongs to the epoch that the next cut of its bus ends, so one join finds the cut that may end a value.
All of it is lazy: frames that Spark computes together with the stage that asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.ticks import EVENT as TIME

__all__ = ["CUTS", "TIME", "Clock", "Position", "batch_clock", "instant", "micros", "read_clock", "read_cuts"]

CUTS = ("stop", "start", "gap")
"""The events that end every value of their bus."""
BUCKET_SEQS = 1024
"""The event before a cut is looked for among so many seqs at the least; a log that was filtered may have holes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Clock:
    """Frames that say how far each bus has come, and where its record was cut."""

    buses: DataFrame
    """Columns bus, before_seq, before, now: the last event and the instant before this batch, and the instant after."""
    cuts: DataFrame | None
    """Columns bus, after_seq, cut_seq, cut_ts, cut_event, a row for each epoch; None where none can be."""

    def join_now(self, rows: DataFrame) -> DataFrame:
        """Add ``before_seq``, ``before`` and ``now`` of its bus to each row."""
        return rows.join(F.broadcast(self.buses), "bus")

    def join_epochs(self, rows: DataFrame) -> DataFrame:
        """Add ``cut_seq``, ``cut_ts`` and ``cut_event`` to each row: the first cut after it, null if there is none."""
        if self.cuts is None:
            nothing = ("cast(null as bigint) as cut_seq", "cast(null as timestamp) as cut_ts")
            return rows.selectExpr("*", *nothing, "cast(null as string) as cut_event")
        epochs = F.broadcast(self.cuts.selectExpr("bus as cut_bus", "after_seq", "cut_seq", "cut_ts", "cut_event"))
        is_inside = F.expr("bus = cut_bus and seq > after_seq and seq < cut_seq")
        return rows.join(epochs, is_inside, "left").selectExpr("* except (cut_bus, after_seq)")


class Position(NamedTuple):
    """How far the tables have come with one bus."""

    seq: int
    """Its last event."""
    us: int
    """The instant it has told of last."""
    cut_seq: int = -1
    """Its last cut; whatever was there before has ended."""


def micros(moment: datetime) -> int:
    """Return the microseconds since 1970; an instant without a zone is in UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    past = aware - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def instant(us: int) -> datetime:
    """Return the instant so many microseconds after 1970."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def read_clock(events: DataFrame, until: datetime | None = None) -> Clock:
    """Derive the clock from the events of a whole log, of which nothing more came ``until`` an instant."""
    now = "max(ts)" if until is None else f"greatest(max(ts), timestamp_micros({micros(until)}L))"
    nothing = ("cast(null as bigint) as before_seq", "cast(null as timestamp) as before")
    buses = events.groupBy("bus").agg(F.expr(f"{now} as now")).selectExpr("bus", *nothing, "now")
    return Clock(buses, read_cuts(events))


def batch_clock(
    spark: SparkSession, before: Mapping[str, Position], now_us: Mapping[str, int], cut_events: DataFrame | None
) -> Clock:
    """Make the clock of a batch from what is known of it; ``cut_events`` are its events if there are cuts in it."""
    moment = pa.timestamp("us", "UTC")
    known = [before.get(bus) for bus in now_us]
    columns = {
        "bus": pa.array(list(now_us), pa.string()),
        "before_seq": pa.array([one and one.seq for one in known], pa.int64()),
        "before": pa.array([one and one.us for one in known], pa.int64()).cast(moment),
        "now": pa.array(list(now_us.values()), pa.int64()).cast(moment),
    }
    # Rows that come from Arrow are part of the plan; from Python objects they would be a job of their own.
    buses = spark.createDataFrame(pa.table(columns))
    if cut_events is None:
        return Clock(buses, None)
    cuts = read_cuts(cut_events, buses).toArrow().combine_chunks()  # Spark loses rows behind an empty chunk
    return Clock(buses, spark.createDataFrame(cuts) if cuts.num_rows else None)


def read_cuts(events: DataFrame, buses: DataFrame | None = None) -> DataFrame:
    """Derive the epochs of some events; ``buses`` says with ``before`` how far each had come until then."""
    since = "try_to_timestamp(get_json_object(detail, '$.since')) as since"
    found = events.where(f"event in {CUTS}").selectExpr("bus", "seq", "ts", "event", since)
    cuts = found.join(_last_before(events, found), ["bus", "seq"], "left")
    if buses is None:
        cuts = cuts.selectExpr("*", "cast(null as timestamp) as before")
    else:
        cuts = cuts.join(F.broadcast(buses.select("bus", "before")), "bus", "left")
    last = "coalesce(last, before, ts)"
    return cuts.selectExpr(
        "bus",
        "coalesce(lag(seq) over (partition by bus order by seq), -1) as after_seq",
        "seq as cut_seq",
        f"case when event = 'stop' then ts when since is null then {last} else least(greatest(since, {last}), ts) end"
        " as cut_ts",
        "event as cut_event",
    )


def _last_before(events: DataFrame, cuts: DataFrame) -> DataFrame:
    """Find the instant of the event before each cut: columns bus, seq, last."""
    near = cuts.selectExpr(
        *("bus", "seq as cut_seq"),
        f"explode(array(floor(seq / {BUCKET_SEQS}), floor(seq / {BUCKET_SEQS}) - 1)) as bucket",
    )
    return (
        events.selectExpr("bus", "seq as event_seq", "ts", f"floor(seq / {BUCKET_SEQS}) as bucket")
        .join(F.broadcast(near), ["bus", "bucket"])
        .where("event_seq < cut_seq")
        .groupBy("bus", "cut_seq")
        .agg(F.expr("max(ts) as last"))
        .selectExpr("bus", "cut_seq as seq", "last")
    )
