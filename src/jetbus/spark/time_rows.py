"""Time rows of format ``jet``: how Spark learns that time has passed on a bus where nothing happens.

With the option ``clock`` a read ends for each bus with a row of event ``time``: bus, the last seq of what was read, and
as ts how far time has come there; everything else is null. Every event of a later read is at least as late. A bus
whose events tell the time themselves needs no such row; what a read that leaves out events by a rule has seen last is
not known, so it gets one in any case.

A batch read tells the time as of its beginning, and so does a stream with ``availableNow``. A stream that runs on tells
it in steps, because each row costs a micro-batch where nothing else happens. A step grows with the silence, so that an
alarm with a hold time of ten seconds is raised within a second or two and one of an hour within a minute, while a bus
that sleeps over night costs one batch a minute:

    silence    1 s   2 s ... 10 s   11 s   12.1 s ... 1 min   66 s ... 10 min   11 min   12 min ...
    step       1 s   1 s      1 s  1.1 s    1.2 s       6 s  6.6 s       60 s     60 s     60 s

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
STEP_US_MAX = 60_000_000
"""A time row that is due comes after this, however long the silence."""
STEPS_OF_SILENCE = 10
"""Between these limits a step is the silence so far, divided by this."""

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
        silence_us = max(before_us - reach.last_us, 0)
        step_us = min(max(silence_us // STEPS_OF_SILENCE, STEP_US_MIN), STEP_US_MAX)
        return end_us if end_us - self._known_us(reach, before_us) >= step_us else before_us

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
