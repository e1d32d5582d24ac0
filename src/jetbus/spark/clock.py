"""The clock of each bus, and the cuts in its record: what a stage must know about a batch besides its rows.

Within a bus, time never goes backwards from one event to the next. So nothing is ever late, and the watermark of a
bus is simply the time of its last event: a window that ends at or before it is complete. Buses do not wait for one
another.

A **cut** ends every value of a bus at once. A daemon that stops takes its tree with it; one that starts again after a
crash tells us that nothing was known since the event before; a gap in the record says since when. Time after a cut is
unknown until the next event of a path, and never part of a mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

__all__ = ["CUTS", "Clock", "Counted", "Cut", "FoundCut", "clock_after", "micros", "read_clock"]

CUTS = ("stop", "start", "gap")
"""The events that end every value of their bus."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CUT_SEQS = pa.schema([("cut_bus", pa.string()), ("cut_seq", pa.int64())])


class Cut(NamedTuple):
    """The end of everything on a bus: until when it was known, and the event that tells of it."""

    bus: str
    seq: int
    until_us: int
    event: str


class FoundCut(NamedTuple):
    """A cut as the events tell it."""

    seq: int
    event: str
    us: int
    since_us: int | None
    """Since when nothing is known, if it tells."""
    before_us: int | None
    """When the event before was; None if that one was not seen."""


class Counted(NamedTuple):
    """Some events of one bus, one after the other: the last of them, how many, the cuts among them."""

    bus: str
    seq: int
    us: int
    events: int
    requests: int
    cuts: tuple[FoundCut, ...] = ()


@dataclass(frozen=True)
class Clock:
    """How far each bus has come: before a batch and after it, in microseconds."""

    before: Mapping[str, int]
    now: Mapping[str, int]
    cuts: tuple[Cut, ...] = ()
    seqs: Mapping[str, int] = field(default_factory=dict)
    """The last event of each bus."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many events of each bus the batch has."""
    requests: int = 0
    """How many of all of them are set or call requests."""

    def known_until(self, instant: datetime) -> Clock:
        """The same, where it is known that nothing else came until an instant."""
        until_us = micros(instant)
        now = {bus: max(now_us, until_us) for bus, now_us in self.now.items()}
        return replace(self, now=now)


def micros(instant: datetime) -> int:
    """Microseconds since 1970; an instant without a zone is in UTC."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    past = aware - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def instant(us: int) -> datetime:
    """The instant so many microseconds after 1970."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def clock_after(counted: Iterable[Counted], before: Mapping[str, int]) -> Clock:
    """The clock after events that were counted, in any order."""
    counts: Counter[str] = Counter()
    now, seqs, cuts, requests = dict(before), dict[str, int](), list[Cut](), 0
    for some in sorted(counted, key=lambda some: (some.bus, some.seq)):
        for cut in some.cuts:
            known_us = now.get(some.bus) if cut.before_us is None else cut.before_us
            cuts.append(Cut(some.bus, cut.seq, _known_until(cut, known_us), cut.event))
        counts[some.bus] += some.events
        now[some.bus] = max(now.get(some.bus, some.us), some.us)
        seqs[some.bus] = some.seq
        requests += some.requests
    return Clock(dict(before), now, tuple(cuts), seqs, dict(counts), requests)


def _known_until(cut: FoundCut, known_us: int | None) -> int:
    """Until when the values before a cut are known; ``known_us`` is when the event before it was."""
    if cut.event == "stop":
        return cut.us
    last_us = cut.us if known_us is None else known_us
    return last_us if cut.since_us is None else min(max(cut.since_us, last_us), cut.us)


def read_clock(events: DataFrame, before: Mapping[str, int] | None = None) -> Clock:
    """Read the clock off the events of a batch; this runs a small job, and two more where there are cuts."""
    found = (
        events.groupBy("bus")
        .agg(
            F.max("seq").alias("seq"),
            F.expr("unix_micros(max(ts))").alias("us"),
            F.count("*").alias("count"),
            F.count_if(F.col("event").isin("set", "call")).alias("requests"),
            F.count_if(F.col("event").isin(*CUTS)).alias("cuts"),
        )
        .collect()
    )
    cuts = _found_cuts(events) if any(row.cuts for row in found) else {}
    counted = (
        Counted(row.bus, row.seq, row.us, row["count"], row.requests, tuple(cuts.get(row.bus, ()))) for row in found
    )
    return clock_after(counted, before or {})


def _found_cuts(events: DataFrame) -> dict[str, list[FoundCut]]:
    """The events that are cuts, in order, by bus."""
    since_us = F.expr("unix_micros(try_to_timestamp(get_json_object(detail, '$.since')))")
    cuts = events.where(F.col("event").isin(*CUTS))
    rows = cuts.select("bus", "seq", "event", F.unix_micros("ts").alias("us"), since_us.alias("since_us")).collect()
    before_us = _before(events, [(row.bus, row.seq) for row in rows if row.event != "stop"])
    found: dict[str, list[FoundCut]] = {}
    for row in sorted(rows, key=lambda row: (row.bus, row.seq)):
        cut = FoundCut(row.seq, row.event, row.us, row.since_us, before_us.get((row.bus, row.seq)))
        found.setdefault(row.bus, []).append(cut)
    return found


def _before(events: DataFrame, cuts: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """When the last event before each cut was."""
    if not cuts:
        return {}
    rows = [{"cut_bus": bus, "cut_seq": seq} for bus, seq in cuts]
    # From Arrow they become part of the plan; from Python objects they would be a job of their own.
    frame = events.sparkSession.createDataFrame(pa.Table.from_pylist(rows, schema=_CUT_SEQS))
    earlier = (F.col("bus") == F.col("cut_bus")) & (F.col("seq") < F.col("cut_seq"))
    found = (
        events.select("bus", "seq", "ts")
        .join(F.broadcast(frame), earlier)
        .groupBy("bus", "cut_seq")
        .agg(F.expr("unix_micros(max(ts))").alias("us"))
        .collect()
    )
    return {(row.bus, row.cut_seq): row.us for row in found}
