"""Data source ``jet``: journals and live daemons for Spark to read, and the bus for Spark to set.

    spark.read.format("jet").load("/var/lib/jet/journal")
    spark.readStream.format("jet").option("startsWith", "plant/").load("/var/lib/jet/*")
    spark.readStream.format("jet").option("url", "jet://localhost").load()

A read is cut into ranges of seqs, each a task of its own; tasks return Arrow batches. The offset of a stream is,
for each bus, the seq of the last event that was read, so that a restart neither loses nor repeats one. Where the
journals are is known to ``journals``, and rows that tell the time that of ``time_rows``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from jetbus.json_types import JsonObject
from jetbus.spark.journals import (
    BusJournal,
    OpenBuses,
    Reach,
    SeqRange,
    Seqs,
    Wanted,
    cut,
    data_loss,
    limited,
    open_buses,
    open_place,
    start_of,
)
from jetbus.spark.options import DaemonAddress, Options, Place, read_options
from jetbus.spark.schemas import JOURNAL, TREE, arrow_of, schema_of
from jetbus.spark.spark_errors import BadOption, DataLoss
from jetbus.spark.time_rows import (
    Offset,
    StreamPosition,
    Tick,
    TickedRange,
    TickSchedule,
    read_offset,
    tick_rows,
    with_ticks,
)

__all__ = ["EventStreamReader", "JetSource", "closing_all"]

BATCH_ROWS_MIN = 16_384
"""Smaller batches of the journal are put together; Spark pays for each of them."""
NOW = "now"


class JetSource(DataSource):
    """Format ``jet``."""

    @classmethod
    def name(cls) -> str:
        return "jet"

    def schema(self) -> StructType:
        options = self._checked()
        return schema_of(TREE if options.is_tree else JOURNAL)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._checked()
        columns = _columns(schema, options)
        return TreeReader(options, columns) if options.is_tree else EventReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        if read_options(self.options).as_of is not None:
            raise BadOption("asOf", "a tree at an instant is read as a batch; use spark.read")
        options = self._checked()
        if options.is_tree:
            raise BadOption("url", "its daemon keeps no journal, which a stream needs; start it with --journal DIR")
        return EventStreamReader(options, _columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's signature
        # Imported here, because it imports peers, which reading does not need.
        from jetbus.spark.sink import SetWriter

        return SetWriter(read_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from jetbus.spark.sink import SetStreamWriter

        return SetStreamWriter(read_options(self.options), schema)

    def _checked(self) -> Options:
        """Read the options and check that their journals and daemons exist."""
        options = read_options(self.options)
        if not options.daemons:
            open_buses(options.places)
            return options
        from jetbus.spark.remote import connect, keeps_journal  # imports peers, needed only here

        if options.as_of == NOW:
            for daemon in options.daemons:
                connect(daemon).close()
            return options
        if options.as_of is None and options.events_only is None and not any(map(keeps_journal, options.daemons)):
            # A daemon without a journal can still be read as it is now.
            return replace(options, as_of=NOW)
        # Opened for its errors only: they are to come from the driver, before a job starts.
        with closing_all(open_buses(options.places)):
            return options


@contextmanager
def closing_all(buses: dict[str, BusJournal]) -> Iterator[dict[str, BusJournal]]:
    """Give some buses and close them afterwards."""
    try:
        yield buses
    finally:
        for bus in buses.values():
            bus.close()


# -- columns


def _columns(schema: StructType, options: Options) -> tuple[str, ...]:
    """Return the columns to read: all, or those of a schema that the user gave."""
    known = schema_of(TREE if options.is_tree else JOURNAL)
    for field in schema:
        if field.name not in known.names:
            raise BadOption("schema", f"there is no column {field.name!r}; there are {', '.join(known.names)}")
        if field.dataType != known[field.name].dataType:
            wanted = known[field.name].dataType.simpleString()
            raise BadOption("schema", f"{field.name} is a {wanted}, not a {field.dataType.simpleString()}")
    return tuple(schema.names)


def _with_bus(batch: pa.RecordBatch, bus: str, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.repeat(pa.scalar(bus, pa.string()), batch.num_rows) if field.name == "bus" else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small batches: Spark pays for each of them."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS_MIN:
            yield _merged(waiting)
            waiting, rows = [], 0
    if rows:
        yield _merged(waiting)


def _merged(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# -- events


class _Events:
    """Common part of the readers of a batch and of a stream: reading a range in a task."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def read(self, partition: InputPartition) -> Iterator[Any]:
        schema = arrow_of(self.columns)
        if isinstance(partition, TickedRange):
            events = () if partition.range is None else self._events(partition.range, schema)
            yield from _together(chain(events, [tick_rows(partition.ticks, schema)]))
        elif isinstance(partition, SeqRange):
            yield from _together(self._events(partition, schema))
        _settle()

    def _events(self, partition: SeqRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the wanted events of a range, with the name of their bus."""
        options = self.options
        # The bus is not a column of a journal, and a journal cannot be read without any column.
        stored = tuple(name for name in self.columns if name != "bus") or ("seq",)
        # A rule leaves out all events without a path, so that only reads that need the time include gaps then.
        gaps = options.rule is None or options.clock
        wanted = Wanted(stored, options.rule, options.since_us, options.until_us, gaps)
        batches = partition.read(wanted, fail_on_data_loss=options.fail_on_data_loss)
        yield from (_with_bus(batch, partition.bus, schema) for batch in batches if batch.num_rows)


class EventReader(_Events, DataSourceReader):
    """The events of some journals as a batch."""

    def partitions(self) -> list[InputPartition]:
        with closing_all(open_buses(self.options.places)) as buses:
            ends = {name: bus.reach() for name, bus in buses.items()}
            last = {name: reach.last for name, reach in ends.items()}
            # A start before the first event that retention has left is moved there.
            done = {name: max(start_of(bus, self.options.start), ends[name].first - 1) for name, bus in buses.items()}
            return with_ticks(cut(buses, done, last, self.options.partition_events), self._ticks(ends))

    def _ticks(self, ends: dict[str, Reach]) -> Iterator[Tick]:
        if self.options.clock:
            clock = TickSchedule(self.options)
            for name, reach in ends.items():
                if now_us := clock.end_us(reach):
                    yield Tick(name, reach.last, now_us)


class EventStreamReader(_Events, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The events of some journals as a stream."""

    _target: dict[str, Reach] | None = None
    """End of a stream with ``availableNow``."""
    _open: OpenBuses | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to its tasks. Open journals and connections stay in the driver.
        return {"options": self.options, "columns": self.columns}

    def _buses(self) -> dict[str, BusJournal]:
        if self._open is None:
            self._open = OpenBuses(self.options)
        return self._open.now()

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {
            name: self._written(StreamPosition(start_of(bus, self.options.start)))
            for name, bus in self._buses().items()
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self.options.batch_events_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # Fixed at the start, or a run to the present end would follow a busy bus for ever.
        self._target = self._reaches()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {
            name: self._written(StreamPosition(reach.last, reach.now_us)) for name, reach in self._reaches().items()
        }

    def _reaches(self) -> dict[str, Reach]:
        return {name: bus.reach() for name, bus in self._buses().items()}

    def _written(self, position: StreamPosition) -> int | dict[str, int]:
        """Return a position as it is in an offset."""
        return position._asdict() if self.options.clock else position.seq

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        reaches = self._reaches()
        ends = reaches if self._target is None else self._target
        begin = read_offset(start)
        done = self._done({name: position.seq for name, position in begin.items()}, reaches)
        last = {name: max(ends[name].last if name in ends else 0, seq) for name, seq in done.items()}
        # Every bus gets a share of the batch, so that a busy one does not keep the others waiting.
        if isinstance(limit, ReadMaxRows):
            last = limited(done, last, limit.max_rows)
        end = dict(start)
        for name, seq in last.items():
            before_us = begin[name].us if name in begin else 0
            position = StreamPosition(seq, self._clock_us(ends.get(name), seq, before_us))
            # A bus that has nothing new keeps its offset, also if its journal cannot be seen right now.
            if position != begin.get(name, StreamPosition(done[name])):
                end[name] = self._written(position)
        return end

    def _clock_us(self, reach: Reach | None, seq: int, before_us: int) -> int:
        """Return the instant of the time row after an event, ``before_us`` if it gets none.

        Only after the last event there is: others may follow that are earlier than how far time has come.
        """
        if not self.options.clock or reach is None or seq != reach.last:
            return before_us
        clock = TickSchedule(self.options)
        return clock.step_us(reach, before_us) if self._target is None else clock.end_us(reach, before_us)

    def _done(self, start: Seqs, reaches: dict[str, Reach]) -> Seqs:
        """Return the last seq that was read of each bus; a new bus is read from its first event."""
        done = {}
        for name, reach in reaches.items():
            first, last = reach.first, reach.last
            done[name] = start.get(name, first - 1)
            # Retention was faster than the stream.
            if done[name] + 1 < first and last >= first:
                if self.options.fail_on_data_loss:
                    raise data_loss(name, done[name] + 1, first)
                done[name] = first - 1
            # The journal at this place is shorter than the part already read, so it is another journal.
            if done[name] > last:
                if self.options.fail_on_data_loss:
                    raise DataLoss(
                        f"the journal of bus {name!r} ends with event {last}, but event {done[name]} was read before; "
                        "it was replaced by another one: start with a new checkpoint, or set the option "
                        "failOnDataLoss to false to go on with what it has from now on"
                    )
                done[name] = last
        return done

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        begin, upto = read_offset(start), read_offset(end)
        first, last = ({name: position.seq for name, position in part.items()} for part in (begin, upto))
        ticks = (
            Tick(name, position.seq, position.us)
            for name, position in upto.items()
            if self.options.clock and position.us > begin.get(name, StreamPosition(0)).us
        )
        return with_ticks(self.ranges(first, last), ticks)

    def ranges(self, start: Seqs, end: Seqs) -> list[SeqRange]:
        """Return the events after ``start`` up to ``end``, a range for each task."""
        buses = self._buses()
        # A journal may be missing while nothing of it is to be read; its offset stays as it is.
        missing = [name for name, seq in end.items() if name not in buses and seq > start.get(name, 0)]
        if missing:
            raise DataLoss(f"the journal of bus {missing[0]!r} is not there any more; put it back, or start anew")
        done = self._done({name: start[name] for name in start if name in end}, self._reaches())
        last = {name: seq for name, seq in end.items() if name in buses}
        lost = {name: start[name] + 1 for name in done if done[name] > start.get(name, done[name])}
        return cut(buses, done, last, self.options.partition_events, lost)


@cache
def _settle() -> None:
    """Make later tasks of this Python process cheaper; called at the end of a task.

    Spark collects garbage after every task and would visit every object of every loaded library each time, which costs
    more than reading the events of a usual task. Frozen objects are not visited. A task has few cores, mostly one, so
    Arrow gets no more threads than that.
    """
    task = TaskContext.get()
    if task is not None:  # the driver is left alone
        gc.collect()
        gc.freeze()
        pa.set_cpu_count(task.cpus())


# -- trees


@dataclass
class TreePartition(InputPartition):
    """The tree of one bus: at an instant, or of a live daemon now."""

    place: Place
    bus: str
    at: JsonObject | None
    """Place of the tree in the journal; None for that of a live daemon now."""


class TreeReader(DataSourceReader):
    """The tree of some journals at an instant, or of live daemons now."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self.options
        if options.daemons and options.as_of == NOW:
            return [TreePartition(daemon, str(daemon), None) for daemon in options.daemons]
        with closing_all(open_buses(options.places)) as buses:
            # Fixed here, so that a task that is made again reads the same tree.
            return [TreePartition(bus.place, name, bus.tree_place(options.as_of or NOW)) for name, bus in buses.items()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, TreePartition):
            return
        schema, rule = arrow_of(self.columns), self.options.rule
        if isinstance(partition.place, DaemonAddress) and partition.at is None:
            from jetbus.spark.remote import tree_now

            if rows := tree_now(partition.place, rule):
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
            return
        bus = open_place(partition.place, in_task=True)
        for batch in bus.tree(partition.at or {}, rule):
            yield _with_bus(batch, partition.bus, schema)
