"""Time rows of format ``jet``: how Spark learns that time has passed on a bus where nothing happens.

With the option ``clock`` a read ends for each bus with a row of event ``time``: bus, the last seq of what was read, and
as ts how far time has come there; everything else is null. Every event of a later read is at least as late. A bus
whose events tell the time themselves needs no such row; what a read that leaves out events by a rule has seen last is
not known, so it gets one in any case.

A batch read tells the time as of its beginning, and so does a stream with ``availableNow``. A stream that runs on tells
it in steps, because each row costs a micro-batch where nothing else happens. Each step is as long as the silence before
it, so that a bus which sleeps over night costs 15 batches. The minute and the hour of the last event end with a time
row of their own, which completes their windows:

    last event    12:34:56
    time rows     12:34:57, :58, 12:35:00, :04, :12, :28, 12:36:00, 12:38:08 ... 12:52:00, 13:00:00, 13:25:04 ...

The offset of a stream holds the instant of the last time row beside the seq, 0 if there was none. Offsets of a stream
without the option are bare seqs; either form is understood, so that a checkpoint outlives a change of the option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from jetbus.spark.journals import Reach, SeqRange
from jetbus.spark.options import Options

__all__ = [
    "EVENT",
    "Offset",
    "StreamPosition",
    "Tick",
    "TickSchedule",
    "TickedRange",
    "read_offset",
    "tick_rows",
    "with_ticks",
]

EVENT = "time"
"""The event of a time row."""
STEP_US_MIN = 1_000_000
"""Time passes at least by this from the last event or time row of a stream to the next time row."""
PERIODS_US = (60_000_000, 3_600_000_000)
"""A minute and an hour; those of the last event end with a time row."""

Offset = dict[str, int | dict[str, int]]
"""The offset of a stream: for each bus its last seq, or ``{"seq": 17, "us": 1772323200000000}``."""


class StreamPosition(NamedTuple):
    """Position of a stream on one bus."""

    seq: int
    us: int = 0
    """The instant of its last time row; 0 if there was none."""


def read_offset(offset: Mapping[str, int | Mapping[str, int]]) -> dict[str, StreamPosition]:
    """Return the position on each bus, from an offset of either form.

    >>> read_offset({"a": 17, "b": {"seq": 3, "us": 1772323200000000}})
    {'a': StreamPosition(seq=17, us=0), 'b': StreamPosition(seq=3, us=1772323200000000)}
    """
    return {bus: StreamPosition(at) if isinstance(at, int) else StreamPosition(**at) for bus, at in offset.items()}


class TickSchedule:
    """Decision how far the time of a bus is reported, given how far it was reported before."""

    def __init__(self, options: Options) -> None:
        self._since_us = options.since_us
        self._until_us = options.until_us
        self._sees_all = options.rule is None

    def end_us(self, reach: Reach, before_us: int = 0) -> int:
        """Return the instant to tell at the end of a read; ``before_us`` if there is nothing to tell."""
        # An empty journal has no event that time could be counted from.
        if reach.last < reach.first:
            return before_us
        now_us = reach.now_us if self._until_us is None else min(reach.now_us, self._until_us)
        if now_us <= self._known_us(reach, before_us) or now_us < (self._since_us or 0):
            return before_us
        return now_us

    def step_us(self, reach: Reach, before_us: int) -> int:
        """Return the same for a stream that runs on: ``before_us`` also if the next step is not due yet."""
        end_us = self.end_us(reach, before_us)
        # The end of the range is reported whatever the step: nothing follows that could report it later.
        if end_us == self._until_us:
            return end_us
        known_us = self._known_us(reach, before_us)
        ends_us = ((reach.last_us // period_us + 1) * period_us for period_us in PERIODS_US)
        is_over = any(known_us < one_us <= end_us for one_us in ends_us)
        is_due = end_us - known_us >= max(known_us - reach.last_us, STEP_US_MIN)
        return end_us if is_over or is_due else before_us

    def _known_us(self, reach: Reach, before_us: int) -> int:
        """Return how far the rows themselves tell the time; later ones than ``until`` are not among them."""
        last_is_read = self._sees_all and (self._until_us is None or reach.last_us < self._until_us)
        return max(before_us, reach.last_us) if last_is_read else before_us


class Tick(NamedTuple):
    """A time row."""

    bus: str
    seq: int
    us: int


@dataclass
class TickedRange(InputPartition):
    """A range of events and the time rows after it, read by one task; there may be no events."""

    range: SeqRange | None
    ticks: tuple[Tick, ...]


def with_ticks(ranges: Iterable[SeqRange], ticks: Iterable[Tick]) -> list[InputPartition]:
    """Return the ranges with time rows behind the last of them: a task of their own would cost more than they do."""
    found, ticked = [*ranges], tuple(ticks)
    if not ticked:
        return [*found]
    last = found.pop() if found else None
    return [*found, TickedRange(last, ticked)]


def tick_rows(ticks: Iterable[Tick], schema: pa.Schema) -> pa.RecordBatch:
    """Return time rows as a batch, as far as the schema has their columns."""
    rows = [{"bus": tick.bus, "seq": tick.seq, "ts": tick.us, "event": EVENT} for tick in ticks]
    return pa.RecordBatch.from_pylist(rows, schema=schema)
