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
All of it is lazy: frames that Spark computes together with the stage that asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from jetbus.journal.events import CUTS
from jetbus.spark.sql_text import join, run, select, write_map
from jetbus.spark.time_rows import EVENT as TIME

__all__ = ["CUTS", "TIME", "BatchClock", "Position", "batch_clock", "instant", "micros", "read_clock", "read_cuts"]

BUCKET_SEQS = 1024
"""The event before a cut is looked for among so many seqs at the least; a log that was filtered may have holes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class BatchClock:
    """Facts that say how far each bus has come, and where its record was cut, to be joined to rows."""

    times: str | None
    """Times of each bus where they are known: an SQL map from bus to a struct of before_seq, before and now.

    ``before_seq`` and ``before`` are the last event and the instant before this batch, ``now`` is the instant after it.
    Looking up a constant costs no job, a join does. None where Spark derives them: a frame ``clock_buses`` has them.
    """
    frames: Mapping[str, DataFrame]
    """``clock_cuts`` has bus, after_seq, cut_seq, cut_ts, cut_event, a row for each epoch, unless none can be."""

    def join_now(self, source: str) -> str:
        """Add ``before_seq``, ``before`` and ``now`` of its bus to each row of a query."""
        if self.times is None:
            times = ("other.before_seq", "other.before", "other.now")
            return join(source, "{clock_buses}", "part.*", *times, on="part.bus = other.bus", kind="", hint="broadcast")
        return select(select(source, "*", f"{self.times}[bus] as times"), "* except (times)", "times.*")

    def join_epochs(self, source: str) -> str:
        """Add ``cut_seq``, ``cut_ts`` and ``cut_event`` to each row: the first cut after it, null if there is none."""
        if "clock_cuts" not in self.frames:
            nothing = ("cast(null as bigint) as cut_seq", "cast(null as timestamp) as cut_ts")
            return select(source, "*", *nothing, "cast(null as string) as cut_event")
        is_inside = "part.bus = other.bus and part.seq > other.after_seq and part.seq < other.cut_seq"
        cut = ("other.cut_seq", "other.cut_ts", "other.cut_event")
        return join(source, "{clock_cuts}", "part.*", *cut, on=is_inside, hint="broadcast")

    def run(self, text: str, **frames: DataFrame | None) -> DataFrame:
        """Return the frame of a query over some frames and those of the clock."""
        return run(text, **{name: frame for name, frame in frames.items() if frame is not None}, **self.frames)


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
    now = "max(ts)" if until is None else f"greatest(max(ts), timestamp_micros({micros(until)}L))"
    nothing = ("cast(null as bigint) as before_seq", "cast(null as timestamp) as before")
    buses = run(select("{events}", "bus", *nothing, f"{now} as now", group="bus"), events=events)
    return BatchClock(None, {"clock_buses": buses, "clock_cuts": read_cuts(events)})


def batch_clock(
    spark: SparkSession, before: Mapping[str, Position], now_us: Mapping[str, int], cut_events: DataFrame | None
) -> BatchClock:
    """Make the clock of a batch from what is known of it; ``cut_events`` are its events if there are cuts in it."""
    times = write_map({bus: _times(before.get(bus), us) for bus, us in now_us.items()})
    if cut_events is None:
        return BatchClock(times, {})
    cuts = read_cuts(cut_events, times).toArrow().combine_chunks()  # Spark loses rows behind an empty chunk
    return BatchClock(times, {"clock_cuts": spark.createDataFrame(cuts)} if cuts.num_rows else {})


def _times(before: Position | None, now_us: int) -> str:
    """Return the times of a bus as a struct in SQL."""
    seq, us = ("null", "null") if before is None else (before.seq, before.us)
    return (
        f"named_struct('before_seq', cast({seq} as bigint), 'before', timestamp_micros(cast({us} as bigint)), "
        f"'now', timestamp_micros({now_us}L))"
    )


def read_cuts(events: DataFrame, times: str | None = None) -> DataFrame:
    """Derive the epochs of some events; ``times`` says how far each bus had come until then."""
    since = "try_to_timestamp(get_json_object(detail, '$.since')) as since"
    before = "cast(null as timestamp)" if times is None else f"{times}[bus].before"
    found = select("{events}", "bus", "seq", "ts", "event", since, f"{before} as before", where=f"event in {CUTS}")
    last = "coalesce(last, before, ts)"
    cuts = select(
        join(found, _last_before(), "part.*", "other.last", on="part.bus = other.bus and part.seq = other.seq"),
        "bus",
        "coalesce(lag(seq) over (partition by bus order by seq), -1) as after_seq",
        "seq as cut_seq",
        # A stop is the very moment. A start or a gap only tells that values have ended by then: since the event before,
        # or since the instant that a gap names, if that is later.
        f"case when event = 'stop' then ts when since is null then {last} else least(greatest(since, {last}), ts) end"
        " as cut_ts",
        "event as cut_event",
    )
    return run(cuts, events=events)


def _last_before() -> str:
    """Return the query for the instant of the event before each cut: columns bus, seq, last."""
    bucket = f"floor(seq / {BUCKET_SEQS}) as bucket"
    cuts = select("{events}", "bus", "seq as cut_seq", bucket, where=f"event in {CUTS}")
    # An equality of buckets lets Spark join by hash; by ``seq < cut_seq`` alone it would compare all with all. The
    # bucket before is looked at, too, for a cut at the beginning of its own.
    near = select(cuts, "bus", "cut_seq", "explode(array(bucket, bucket - 1)) as bucket")
    is_earlier = "part.bus = other.bus and part.bucket = other.bucket and part.seq < other.cut_seq"
    events = select("{events}", "bus", "seq", "ts", bucket)
    earlier = join(events, near, "part.bus", "part.ts", "other.cut_seq", on=is_earlier, kind="", hint="broadcast")
    return select(earlier, "bus", "cut_seq as seq", "max(ts) as last", group="bus, cut_seq")
