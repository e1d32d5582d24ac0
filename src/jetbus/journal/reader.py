"""The journal for readers: one object over one or more directories, giving Arrow batches and tables.

    journal = jetbus.journal.open("/var/lib/jet")
    for batch in journal.read("plant/**", since="-2h"): ...
    journal.as_of("2026-03-01T12:00:00Z")

It needs no lock and no writer, and reads while one writes, compacts or drops. With several directories every table has
a column ``bus`` more and goes bus after bus; within one bus, events are in order of seq.
"""

from __future__ import annotations

import glob
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from jetbus.journal import snapshots
from jetbus.journal.errors import JournalError, NotAJournal
from jetbus.journal.heartbeat import read_heartbeat
from jetbus.journal.instants import Instant
from jetbus.journal.scan import Cursor, Log, SpanPiece
from jetbus.journal.segment import EVENTS, SCHEMA
from jetbus.journal.sieve import Range, RuleLike, Sieve, as_rule
from jetbus.journal.stats import Stats, stats_of
from jetbus.journal.tree import TREE_EVENTS, difference
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

BUS = pa.field("bus", pa.string())
HISTORY = ["ts", "seq", "event", "value", "peer"]

Seqs = int | Mapping[str, int]
"""A seq, or one for each bus by its name."""


class Offsets(TypedDict):
    """Where a log begins and ends; instants in microseconds, None while there is nothing."""

    first: int
    last: int
    first_ts: int | None
    last_ts: int | None
    now: int | None
    """How far time has come: events after ``last`` are not before it. It is ``last_ts`` if no more is known, because
    nobody writes or the last event is recent."""


class Which(TypedDict, total=False):
    """Which events are read besides by rule and time, and which of their columns."""

    seq: Seqs | None
    seq_until: Seqs | None
    columns: Sequence[str] | None
    events: Iterable[str] | None


def open(*directories: str | os.PathLike[str]) -> Journal:  # noqa: A001 - journal.open(...) is how it reads
    """Open the journals in these directories for reading; a text may be a glob such as ``/var/lib/jet/*``.

    Raises ``NotAJournal`` for a directory that holds none.
    """
    found = [path for directory in directories for path in _globbed(directory)]
    if not found:
        raise NotAJournal(f"there is no journal at {', '.join(map(str, directories)) or 'no directory'}")
    return Journal(found)


def _globbed(directory: str | os.PathLike[str]) -> list[Path]:
    if not isinstance(directory, str) or not glob.has_magic(directory) or Path(directory).is_dir():
        return [Path(directory)]
    return [path for path in map(Path, sorted(glob.glob(directory))) if path.is_dir()]  # noqa: PTH207 - may be absolute


class Journal:
    """What one or more buses have recorded. Made by ``open``.

    ``since`` and ``seq`` are in the range, ``until`` and ``seq_until`` are not. Instants are datetimes, RFC 3339 texts,
    ``"-2h"`` or microseconds; rules are texts, ``Rule`` or the keywords of ``jetbus.rules.rule``.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        logs = [Log(directory) for directory in directories]
        self._logs = dict(zip(_bus_names(logs), logs, strict=True))
        self._many = len(logs) > 1

    @property
    def buses(self) -> list[str]:
        """The names of the buses, as the column ``bus`` has them."""
        return list(self._logs)

    @property
    def schema(self) -> Any:
        """The columns of all events."""
        return self._with_bus(SCHEMA)

    # -- events

    def read(
        self,
        rule: RuleLike | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        seq: Seqs | None = None,
        seq_until: Seqs | None = None,
        columns: Sequence[str] | None = None,
        events: Iterable[str] | None = None,
    ) -> Iterator[Any]:
        """The events as record batches, up to what is committed now. With a rule, only events of matching paths.

        ``JournalGone`` if ``seq``, or what follows an event already given, has been dropped.
        """
        wanted = self._columns(columns)
        kinds = _checked_events(events)
        wanted_rule = as_rule(rule)
        ranges = {bus: self._range(bus, since, until, seq, seq_until) for bus in self._logs}
        return chain.from_iterable(
            self._read_bus(bus, wanted, Sieve(wanted_rule, kinds, within), strict=seq is not None)
            for bus, within in ranges.items()
        )

    def _read_bus(self, bus: str, wanted: list[str], sieve: Sieve, *, strict: bool) -> Iterator[Any]:
        log = self._logs[bus]
        cursor = Cursor(sieve.within.seq, strict=strict)
        return self._named(bus, log.read(cursor, _stored(wanted), sieve), wanted)

    def table(
        self,
        rule: RuleLike | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        **which: Unpack[Which],
    ) -> Any:
        """The same as one table in memory; it takes what ``read`` takes."""
        return self.reader(rule, since, until, **which).read_all()

    def reader(
        self,
        rule: RuleLike | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        **which: Unpack[Which],
    ) -> Any:
        """The same as a ``RecordBatchReader``, which duckdb, polars and pandas take as a stream."""
        batches = self.read(rule, since, until, **which)
        schema = pa.schema([self.schema.field(name) for name in self._columns(which.get("columns"))])
        return pa.RecordBatchReader.from_batches(schema, batches)

    def dataset(self) -> Any:
        """All events as an Arrow dataset, which can be asked again and again; in no order.

        What is compacted stays on disk and is skipped by path, seq and ts; what is not is loaded into memory.
        """
        import pyarrow.dataset as ds  # loads pandas where there is one, and nothing else here needs it

        return ds.dataset([part for bus in self._logs for part in self._datasets(bus)])

    def _datasets(self, bus: str) -> Iterator[Any]:
        import pyarrow.dataset as ds

        log = self._logs[bus]
        spans = [piece.span for piece in log.view().pieces if isinstance(piece, SpanPiece)]
        file_format = ds.ParquetFileFormat()
        names = ds.field("bus") == bus if self._many else None
        fragments = [
            file_format.make_fragment(str(log.directory / span.file), pa.fs.LocalFileSystem(), names) for span in spans
        ]
        yield ds.FileSystemDataset(fragments, self.schema, file_format, pa.fs.LocalFileSystem())
        upto = spans[-1].last if spans else 0
        cursor = Cursor(upto + 1, strict=bool(spans))
        batches = self._named(bus, log.read(cursor, SCHEMA.names, Sieve()), self.schema.names)
        yield ds.InMemoryDataset(pa.Table.from_batches(batches, schema=self.schema))

    def follow(
        self,
        seq: Seqs | None = None,
        rule: RuleLike | None = None,
        stop: threading.Event | None = None,
        poll_s: float = 0.05,
        *,
        columns: Sequence[str] | None = None,
        events: Iterable[str] | None = None,
    ) -> Iterator[Any]:
        """The events from ``seq`` on, and those to come as they are committed, until ``stop`` is set.

        Without ``seq`` it begins with the next event. Who falls behind retention is told with ``JournalGone``.
        """
        wanted = self._columns(columns)
        cursors = {
            bus: Cursor(self._seq_of(bus, seq, log.view().last + 1), strict=True) for bus, log in self._logs.items()
        }
        return self._follow(cursors, wanted, Sieve(as_rule(rule), _checked_events(events)), stop, poll_s)

    def _follow(
        self, cursors: dict[str, Cursor], wanted: list[str], sieve: Sieve, stop: threading.Event | None, poll_s: float
    ) -> Iterator[Any]:
        stopped = stop or threading.Event()
        while not stopped.is_set():
            before = [cursor.next_seq for cursor in cursors.values()]
            for bus, cursor in cursors.items():
                for batch in self._named(bus, self._logs[bus].read(cursor, _stored(wanted), sieve), wanted):
                    yield batch
                    if stopped.is_set():
                        return
            if before == [cursor.next_seq for cursor in cursors.values()]:
                stopped.wait(poll_s)

    # -- the tree

    def as_of(self, instant: Instant | None = None, rule: RuleLike | None = None, *, seq: Seqs | None = None) -> Any:
        """The whole tree at an instant or just after a seq, in order of creation; without either, as it is now.

        Columns: path, kind, value, peer (the owner), detail (of its add), ts and seq (of its last event), created_seq.
        """
        made = as_rule(rule)
        trees = []
        for bus, log in self._logs.items():
            trees.append(self._named_table(bus, self._tree(bus, log, instant, seq, made)))
        return pa.concat_tables(trees).combine_chunks() if self._many else trees[0]

    def diff(self, a: Instant, b: Instant, rule: RuleLike | None = None) -> Any:
        """What is added, removed and changed from one instant to another: path, what, before, after."""
        made = as_rule(rule)
        found = []
        for bus, log in self._logs.items():
            before, after = (self._tree(bus, log, instant, None, made) for instant in (a, b))
            found.append(self._named_table(bus, difference(before, after)))
        return pa.concat_tables(found).combine_chunks() if self._many else found[0]

    def history(
        self,
        path: str,
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        events: Iterable[str] = TREE_EVENTS,
    ) -> Any:
        """The values of one path over time: ts, seq, event, value, peer; ``events`` may ask for ``set``, ``call``."""
        return self.table(make_rule(equals=path), since, until, columns=[*self._bus_column, *HISTORY], events=events)

    # -- what there is

    def offsets(self) -> dict[str, Offsets]:
        """The first and last event of each bus that can be read now, and how far time has come there."""
        found = {}
        for bus, log in self._logs.items():
            heartbeat = read_heartbeat(log.directory)  # before the log, which then has all that happened until it
            view = log.view()
            first_ts = view.pieces[0].ts_min_us if view.pieces else None
            last_ts = view.pieces[-1].ts_max_us if view.pieces else None
            now = last_ts
            if heartbeat is not None and heartbeat.seq <= view.last:
                now = max(heartbeat.us, last_ts or 0)
            found[bus] = Offsets(first=view.first, last=view.last, first_ts=first_ts, last_ts=last_ts, now=now)
        return found

    def stats(self, *, top: int = 10) -> dict[str, Stats]:
        """For each bus what it has recorded: events, bytes, kinds of events, top talkers, gaps, files."""
        return {bus: stats_of(log, top) for bus, log in self._logs.items()}

    # -- small things

    @property
    def _bus_column(self) -> list[str]:
        return [BUS.name] if self._many else []

    def _with_bus(self, schema: Any) -> Any:
        return schema.insert(0, BUS) if self._many else schema

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        known = self.schema.names
        if columns is None:
            return list(known)
        if unknown := [name for name in columns if name not in known]:
            raise JournalError(f"there is no column {', '.join(unknown)}; there are {', '.join(known)}")
        return list(dict.fromkeys(columns))

    def _range(
        self, bus: str, since: Instant | None, until: Instant | None, seq: Seqs | None, seq_until: Seqs | None
    ) -> Range:
        wide = Range()
        return Range(
            self._seq_of(bus, seq, wide.seq),
            self._seq_of(bus, seq_until, wide.seq_until),
            wide.since_us if since is None else self._logs[bus].instant_us(since),
            wide.until_us if until is None else self._logs[bus].instant_us(until),
        )

    def _seq_of(self, bus: str, seq: Seqs | None, default: int) -> int:
        if isinstance(seq, Mapping):
            return seq.get(bus, default)
        return default if seq is None else seq

    def _tree(self, bus: str, log: Log, instant: Instant | None, seq: Seqs | None, rule: Rule | None) -> Any:
        """The tree of a bus that is asked for by instant or by seq."""
        if seq is not None and instant is not None:
            raise JournalError("a tree is asked for by its instant or by its seq, not by both")
        if instant is not None:
            return snapshots.tree_then(log, log.instant_us(instant), rule)
        last = log.view().last
        return snapshots.tree_at(log, min(self._seq_of(bus, seq, last), last), rule)

    def _named(self, bus: str, batches: Iterable[Any], wanted: list[str]) -> Iterator[Any]:
        """The batches with the name of the bus, where it is wanted."""
        if BUS.name not in wanted:
            yield from batches
            return
        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[BUS.name] = pa.repeat(pa.scalar(bus), batch.num_rows)
            schema = pa.schema([self.schema.field(name) for name in wanted])
            yield pa.RecordBatch.from_arrays([columns[name] for name in wanted], schema=schema)

    def _named_table(self, bus: str, table: Any) -> Any:
        return table.add_column(0, BUS, pa.repeat(pa.scalar(bus), table.num_rows)) if self._many else table


def _stored(wanted: list[str]) -> list[str]:
    return [name for name in wanted if name != BUS.name]


def _checked_events(events: Iterable[str] | None) -> list[str] | None:
    if events is None:
        return None
    kinds = [events] if isinstance(events, str) else list(events)
    if unknown := [kind for kind in kinds if kind not in EVENTS]:
        raise JournalError(f"there is no event {', '.join(unknown)}; there are {', '.join(EVENTS)}")
    return kinds


def _bus_names(logs: Sequence[Log]) -> list[str]:
    """The names of the buses, with the directory where two are of one name."""
    names = Counter(log.identity.bus for log in logs)
    return [log.identity.bus if names[log.identity.bus] == 1 else f"{log.identity.bus}:{log.directory}" for log in logs]
