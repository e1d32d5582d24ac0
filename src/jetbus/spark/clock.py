"""The clock of each bus and the cuts in its record: the facts about a batch that single rows do not tell.

Time never goes backwards from one event of a bus to the next. So nothing is ever late, and the watermark of a bus is
the newest instant that is known of it: a window that ends at or before it is complete. Rows of event ``time``, which
format ``jet`` gives with its option ``clock``, tell of time that passed without events. Buses do not wait for one
another.

A **cut** ends every value of a bus at once. A daemon that stops takes its tree with it; one that starts again after a
crash tells that nothing was known since the event before; a gap in the record says since when. Time after a cut is
unknown until the next event of a path, and never part of a mean.

    seq      1      2      3 (stop)      4 (start)     5      6 (gap)      7
    epoch   |<---- epoch 1 ---->|<- epoch 2 ->|<---- epoch 3 ---->|    no cut yet

Every event belongs to the epoch that the next cut of its bus ends, so one join finds the cut that may end a value.
Over a whole log all of it is lazy: frames that Spark computes together with the stage that asks for them. Of a batch
the times are known, and are parameters of the stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession

from jetbus.spark.schemas import Column
from jetbus.spark.sql_text import empty_frame, map_buses, run
from jetbus.spark.time_rows import EVENT as TIME

__all__ = ["TIME", "BatchClock", "Position", "batch_clock", "instant", "micros", "read_clock"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CUT_COLUMNS = (
    Column("bus", "string", ""),
    Column("after_seq", "bigint", ""),
    Column("cut_seq", "bigint", ""),
    Column("cut_ts", "timestamp", ""),
    Column("cut_event", "string", ""),
)


@dataclass(frozen=True)
class BatchClock:
    """Facts that say how far each bus has come, and where its record was cut, for the stages."""

    cuts: DataFrame
    """The epochs: a row for each, with the cut that ends it; see ``cuts.sql``."""
    args: Mapping[str, SparkColumn]
    """Parameters by bus: ``before_seqs`` and ``before_us``, the last event and the time before this batch; ``now_us``,
    the time after it. They have no bus of a whole log, before which there was nothing."""
    times: DataFrame | None = None
    """The time of each bus at the end of a whole log, which Spark finds out; see ``bus_times.sql``."""

    def with_time(self, rows: DataFrame) -> DataFrame:
        """Add ``now``, the time of its bus, to each row."""
        if self.times is not None:
            return run("with_log_time", rows=rows, times=self.times)
        return run("with_time", self.args, rows=rows)


class Position(NamedTuple):
    """Position of the tables on one bus."""

    seq: int
    """Its last event."""
    us: int
    """The newest instant that is known of it."""
    cut_seq: int = -1
    """Its last cut; whatever was there before has ended."""


def micros(moment: datetime) -> int:
    """Return the microseconds since 1970; an instant without a zone is in UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # In integers, because ``timestamp()`` is a float that rounds the last digits.
    past = aware - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def instant(us: int) -> datetime:
    """Return the instant so many microseconds after 1970."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def read_clock(events: DataFrame, until: datetime | None = None) -> BatchClock:
    """Derive the clock from the events of a whole log, of which nothing more came ``until`` an instant."""
    args = _args({}, {})
    times = run("bus_times", {"until_us": 0 if until is None else micros(until)}, events=events)
    return BatchClock(run("cuts", args, events=events), args, times)


def batch_clock(
    spark: SparkSession, before: Mapping[str, Position], now_us: Mapping[str, int], cut_events: DataFrame | None
) -> BatchClock:
    """Make the clock of a batch from its known extent; ``cut_events`` are its events if there are cuts in it."""
    args = _args(before, now_us)
    nothing = empty_frame(spark, _CUT_COLUMNS)
    if cut_events is None:
        return BatchClock(nothing, args)
    # Several stages ask for them. A frame that is made of Python's rows would take the place of the user's session.
    return BatchClock(run("cuts", args, events=cut_events).localCheckpoint(), args)


def _args(before: Mapping[str, Position], now_us: Mapping[str, int]) -> dict[str, SparkColumn]:
    return {
        "before_seqs": map_buses({bus: position.seq for bus, position in before.items()}),
        "before_us": map_buses({bus: position.us for bus, position in before.items()}),
        "now_us": map_buses(now_us),
    }
