"""Data source ``jet``: a journal, or the tree of a live daemon, for Spark to read; and the bus for Spark to set.

    spark.read.format("jet").load("/var/lib/jet/journal")
    spark.readStream.format("jet").option("startsWith", "plant/").load("/var/lib/jet/*")
    spark.read.format("jet").option("url", "jet://localhost").load()

What is read is cut into ranges of seqs, each a task of its own; tasks give Arrow batches. The offset of a stream is,
for each bus, the seq of the last event that was read, so that a restart neither loses nor repeats one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
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

from jetbus import journal
from jetbus.errors import JetError
from jetbus.journal.instants import read_instant
from jetbus.spark.errors import BadOption, DataLoss
from jetbus.spark.options import Options, directories_now, read_options
from jetbus.spark.schemas import JOURNAL, TREE, schema_of

__all__ = ["JetSource"]

BATCH_ROWS_MIN = 16_384
"""Smaller batches of the journal are put together; Spark pays for each of them."""
PARTITIONS_MAX = 10_000

Seqs = dict[str, int]

_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


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
        options = self._checked()
        if options.url is not None:
            raise BadOption(
                "url", "the tree of a live daemon is read as a batch; stream its journal by .load(directory)"
            )
        if options.as_of is not None:
            raise BadOption("asOf", "a tree at an instant is read as a batch; use spark.read")
        return EventStreamReader(options, _columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's signature
        from jetbus.spark.sink import SetWriter

        return SetWriter(read_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from jetbus.spark.sink import SetStreamWriter

        return SetStreamWriter(read_options(self.options), schema)

    def _checked(self) -> Options:
        """The options, of a journal that is there."""
        options = read_options(self.options)
        open_buses(options.directories)
        return options


def open_buses(directories: Sequence[Path]) -> dict[str, Bus]:
    """The journals in some directories, by the names of their buses."""
    buses: dict[str, Bus] = {}
    for directory in directories:
        try:
            log = journal.open(directory)
        except journal.JournalError as problem:
            raise BadOption("path", str(problem)) from problem
        (name,) = log.buses
        if name in buses:
            raise BadOption(
                "path",
                f"{directory} and {buses[name].directory} are both of a bus named {name!r}; "
                "give the bus of one of them another name in its daemon's settings",
            )
        buses[name] = Bus(name, directory, log)
    return buses


class Bus:
    """One journal among those that are read."""

    def __init__(self, name: str, directory: Path, log: journal.Journal) -> None:
        self.name = name
        self.directory = directory
        self.log = log

    def ends(self) -> tuple[int, int]:
        """The first and the last seq there is; last is first - 1 while there is nothing."""
        (found,) = self.log.offsets().values()
        return found["first"], found["last"]

    def seq_at(self, instant: str) -> int:
        """The last seq before an instant."""
        first, last = self.ends()
        for batch in self.log.read(since=read_instant(instant), columns=["seq"]):
            if batch.num_rows:
                found: int = batch.column(0)[0].as_py()
                return found - 1
        return max(last, first - 1)

    def start(self, start: str) -> int:
        """The last seq that is not to be read, as the option ``start`` has it."""
        first, last = self.ends()
        if start == "earliest":
            return first - 1
        if start == "latest":
            return last
        if start.isdigit():
            return max(int(start), 1) - 1
        if start.startswith("{"):
            told: Seqs = json.loads(start)
            return max(told.get(self.name, first), 1) - 1
        return self.seq_at(start)


@dataclass
class SeqRange(InputPartition):
    """The events of one bus from ``first`` to ``last``."""

    directory: Path
    bus: str
    first: int
    last: int


def cut(buses: Mapping[str, Bus], done: Seqs, last: Seqs, events: int) -> list[SeqRange]:
    """The ranges after ``done`` up to ``last``, cut to so many events."""
    total = sum(max(0, last[name] - done[name]) for name in last)
    size = max(events, total // PARTITIONS_MAX)
    return [
        SeqRange(buses[name].directory, name, first, min(first + size - 1, bus_last))
        for name, bus_last in last.items()
        for first in range(done[name] + 1, bus_last + 1, size)
    ]


# -- columns


def _columns(schema: StructType, options: Options) -> tuple[str, ...]:
    """The columns that are asked for: all, or those of a schema that the user gave."""
    known = schema_of(TREE if options.is_tree else JOURNAL)
    for field in schema:
        if field.name not in known.names:
            raise BadOption("schema", f"there is no column {field.name!r}; there are {', '.join(known.names)}")
        if field.dataType != known[field.name].dataType:
            wanted = known[field.name].dataType.simpleString()
            raise BadOption("schema", f"{field.name} is a {wanted}, not a {field.dataType.simpleString()}")
    return tuple(schema.names)


def _arrow(columns: Sequence[str]) -> pa.Schema:
    types = {column.name: _ARROW[column.type] for column in (*TREE, *JOURNAL)}
    return pa.schema([(name, types[name]) for name in columns])


def _with_bus(batch: pa.RecordBatch, bus: str, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.repeat(pa.scalar(bus, pa.string()), batch.num_rows) if field.name == "bus" else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth their while."""
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


def read_range(options: Options, columns: tuple[str, ...], part: SeqRange) -> Iterator[pa.RecordBatch]:
    """The wanted events of one range. Runs in a task."""
    stored = [name for name in columns if name != "bus"] or ["seq"]
    log = journal.open(part.directory)
    first = part.first if options.fail_on_data_loss else max(part.first, log.offsets()[log.buses[0]]["first"])
    schema = _arrow(columns)
    batches = log.read(
        options.rule, options.since_us, options.until_us, seq=first, seq_until=part.last + 1, columns=stored
    )
    try:
        yield from _together(_with_bus(batch, part.bus, schema) for batch in batches if batch.num_rows)
    except journal.JournalGone as problem:
        raise data_loss(part.bus, part.first, problem.first_seq) from problem


def data_loss(bus: str, wanted: int, first: int) -> DataLoss:
    """The error for events that are gone."""
    return DataLoss(
        f"events {wanted} to {first - 1} of bus {bus!r} were dropped by retention before they were read; "
        "keep them longer, or set the option failOnDataLoss to false to go on without them"
    )


class EventReader(DataSourceReader):
    """The events of some journals as a batch."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        buses = open_buses(self.options.directories)
        last = {name: bus.ends()[1] for name, bus in buses.items()}
        done = {name: max(bus.start(self.options.start), bus.ends()[0] - 1) for name, bus in buses.items()}
        return [*cut(buses, done, last, self.options.partition_events)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self.options, self.columns, partition) if isinstance(partition, SeqRange) else iter(())


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The events of some journals as a stream."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self._target: Seqs | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns, "_target": None}

    def _buses(self) -> dict[str, Bus]:
        """The journals by now: a glob may match new ones."""
        now = directories_now(self.options)
        if now != self.options.directories or not hasattr(self, "_open"):
            self.options = replace(self.options, directories=now)
            self._open = open_buses(now)
        return self._open

    def initialOffset(self) -> Seqs:  # noqa: N802 - Spark's name
        return {name: bus.start(self.options.start) for name, bus in self._buses().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self.options.batch_events_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._ends()

    def reportLatestOffset(self) -> Seqs:  # noqa: N802 - Spark's name
        return self._ends()

    def _ends(self) -> Seqs:
        return {name: bus.ends()[1] for name, bus in self._buses().items()}

    def latestOffset(self, start: Seqs, limit: ReadLimit) -> Seqs:  # noqa: N802 - Spark's name
        ends = self._ends() if self._target is None else self._target
        done = self._done(start)
        last = {name: max(ends.get(name, 0), seq) for name, seq in done.items()}
        if isinstance(limit, ReadMaxRows):
            last = limited(done, last, limit.max_rows)
        # A bus that has nothing new keeps its offset, also if its journal cannot be seen right now.
        return {**start, **{name: seq for name, seq in last.items() if name in start or seq > done[name]}}

    def _done(self, start: Seqs) -> Seqs:
        """What has been read of each bus; a bus that was not there before is read from its first event."""
        done = {}
        for name, bus in self._buses().items():
            first, last = bus.ends()
            done[name] = start.get(name, first - 1)
            if done[name] + 1 < first and last >= first:
                if self.options.fail_on_data_loss:
                    raise data_loss(name, done[name] + 1, first)
                done[name] = first - 1
            if done[name] > last:
                if self.options.fail_on_data_loss:
                    raise DataLoss(
                        f"the journal of bus {name!r} ends with event {last}, but event {done[name]} was read before; "
                        "it was replaced by another one: start with a new checkpoint, or set the option "
                        "failOnDataLoss to false to go on with what it has from now on"
                    )
                done[name] = last
        return done

    def partitions(self, start: Seqs, end: Seqs) -> list[InputPartition]:
        buses = self._buses()
        missing = [name for name, seq in end.items() if name not in buses and seq > start.get(name, 0)]
        if missing:
            raise DataLoss(f"the journal of bus {missing[0]!r} is not there any more; put it back, or start anew")
        done = self._done({name: start[name] for name in start if name in end})
        last = {name: seq for name, seq in end.items() if name in buses}
        return [*cut(buses, done, last, self.options.partition_events)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self.options, self.columns, partition) if isinstance(partition, SeqRange) else iter(())


def limited(done: Seqs, last: Seqs, events: int) -> Seqs:
    """The ends of a batch of so many events: every bus gets its share, and what others leave.

    >>> limited({"a": 0, "b": 0}, {"a": 10, "b": 2}, 6)
    {'a': 4, 'b': 2}
    """
    left = max(events, 1)
    found: Seqs = {}
    by_need = sorted(last, key=lambda name: last[name] - done[name])
    for place, name in enumerate(by_need):
        share = -(-left // (len(by_need) - place))
        taken = min(last[name] - done[name], share)
        found[name] = done[name] + taken
        left -= taken
    return {name: found[name] for name in last}


# -- trees


@dataclass
class Tree(InputPartition):
    """The tree of one bus: of its journal, or of its daemon."""

    directory: Path | None
    bus: str


class TreeReader(DataSourceReader):
    """The tree of a journal at an instant, or of a live daemon now."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self.options
        if options.url is None:
            return [Tree(bus.directory, name) for name, bus in open_buses(options.directories).items()]
        with connected(options) as peer:
            return [Tree(None, peer.url)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Tree):
            return
        schema = _arrow(self.columns)
        if partition.directory is not None:
            tree = journal.open(partition.directory).as_of(self.options.as_of, self.options.rule)
            for batch in tree.to_batches():
                yield _with_bus(batch, partition.bus, schema)
            return
        with connected(self.options) as peer:
            values = peer.get(self.options.rule)
        rows = [
            {"bus": partition.bus, "path": path, "kind": "state", "value": json.dumps(value, ensure_ascii=False)}
            for path, value in values.items()
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def connected(options: Options) -> Any:
    """A peer that is connected to the daemon of the option ``url``."""
    from jetbus.peer import Peer

    try:
        peer = Peer(options.url, name="spark", user=options.user, password=options.password, reconnect=False)
        peer.connect()
    except (JetError, OSError, ValueError) as problem:
        raise BadOption("url", str(problem)) from problem
    return peer
