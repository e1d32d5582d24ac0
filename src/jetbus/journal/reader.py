"""The journal for readers: one object over one or more directories, which returns Arrow batches and tables.

    journal = jetbus.journal.open("/var/lib/jet")
    for batch in journal.read("plant/**", since="-2h"): ...
    journal.as_of("2026-03-01T12:00:00Z")

It needs neither a lock nor a writer, and reads while others write, compact or drop segments. With several directories
every table has an additional column ``bus`` and is ordered by bus; within a bus, events are in order of seq.
"""

from __future__ import annotations

import glob
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal import snapshots
from jetbus.journal.directory import read_heartbeat
from jetbus.journal.effective import LATE
from jetbus.journal.events import CLEARING_EVENTS, VALUE_EVENTS
from jetbus.journal.filters import EventFilter, LogRange, RuleLike, to_rule
from jetbus.journal.instants import Instant, write_instant
from jetbus.journal.journal_errors import (
    JournalDamaged,
    JournalError,
    JournalGone,
    NotAJournal,
    NotRecorded,
    UnknownEvent,
)
from jetbus.journal.log import Cursor, Log, SpanPiece
from jetbus.journal.pandas_frames import describe_for_pandas, import_pandas, make_frame, read_frame
from jetbus.journal.recorded_units import (
    DESCRIBING_EVENTS,
    ELEMENT_EVENTS,
    UNIT,
    add_unit_column,
    add_units_over_time,
    list_elements,
)
from jetbus.journal.segment import EVENTS, SCHEMA
from jetbus.journal.source import (
    AskedAt,
    FolderAnswers,
    PinnedRange,
    check_begin,
    check_matches,
    read_corrected_tree,
    read_effective,
    run_query,
)
from jetbus.journal.stats import Stats, collect_stats
from jetbus.journal.tree import TREE, diff_trees
from jetbus.journal.typed import add_typed_columns
from jetbus.rules import EVERYTHING, Rule
from jetbus.rules import rule as make_rule

if TYPE_CHECKING:
    import pandas as pd

BUS = pa.field("bus", pa.string())
HISTORY = ["ts", "seq", "event", "value", "peer", "source_ts", "quality"]

Seqs = int | Mapping[str, int]
"""A seq for all buses, or one per bus name."""


class Offsets(TypedDict):
    """Identity and extent of a log; instants in microseconds, None if the log is empty."""

    id: str
    """Identity of the journal: a journal that replaces another one has another."""
    first: int
    last: int
    first_ts: int | None
    last_ts: int | None
    now: int | None
    """Instant up to which the log is complete: events after ``last`` are not before it. It is ``last_ts`` if no later
    instant is known, because no process writes or the last event is recent."""
    bytes: int
    """Size of its files."""


class ReadOptions(TypedDict, total=False):
    """Further options of ``read``: a range of seqs, columns and kinds of events."""

    seq: Seqs | None
    seq_until: Seqs | None
    columns: Sequence[str] | None
    events: Iterable[str] | None
    always: Iterable[str] | None


def open(*directories: str | os.PathLike[str]) -> Journal:  # noqa: A001 - journal.open(...) is how it reads
    """Open the journals in these directories for reading; text may be a glob such as ``/var/lib/jet/*``.

    Raises ``NotAJournal`` for a directory without a journal.
    """
    found = [path for directory in directories for path in _expand_glob(directory)]
    if not found:
        raise NotAJournal(f"no journal found in {', '.join(map(str, directories)) or 'an empty list of directories'}")
    return Journal(found)


def _expand_glob(directory: str | os.PathLike[str]) -> list[Path]:
    if not isinstance(directory, str) or not glob.has_magic(directory) or Path(directory).is_dir():
        return [Path(directory)]
    return [path for path in map(Path, sorted(glob.glob(directory))) if path.is_dir()]  # noqa: PTH207 - may be absolute


class Journal:
    """Recorded events of one or more buses, created by ``open``.

    Ranges include ``since`` and ``seq`` and exclude ``until`` and ``seq_until``. Instants are datetimes, RFC 3339 text,
    ``"-2h"`` or microseconds; rules are text, a ``Rule`` or the keywords of ``jetbus.rules.rule``.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        logs = [Log(directory) for directory in directories]
        self._logs = dict(zip(_name_buses(logs), logs, strict=True))
        self._many = len(logs) > 1

    def __repr__(self) -> str:
        parts = []
        for bus, log in self._logs.items():
            pieces = log.view().pieces
            times = f", {write_instant(pieces[0].ts_min_us)} to {write_instant(pieces[-1].ts_max_us)}" if pieces else ""
            events = f"events {log.view().first} to {log.view().last}" if pieces else "empty"
            parts.append(f"{bus!r} in {str(log.directory)!r}, {events}{times}")
        return f"<Journal {'; '.join(parts)}>"

    @property
    def buses(self) -> list[str]:
        """The names of the buses, as in the column ``bus``."""
        return list(self._logs)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of events."""
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
        always: Iterable[str] | None = None,
        *,
        late: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield events as record batches, up to the last one committed now; with a rule, events of matching paths.

        ``events`` selects kinds of events. Those of ``always`` are returned whether or not the rule matches, such as
        ``start`` without a path. With ``late``, only values of the past are returned, and ``since`` and ``until`` are
        compared with the times that their owners gave them, whenever they came. Raises ``JournalGone`` if ``seq``, or
        an event after one already returned, was dropped.
        """
        wanted = self._columns(columns)
        kinds, unconditional = _check_events(["past"] if late else events), _check_events(always) or []
        if kinds is not None:
            kinds += [kind for kind in unconditional if kind not in kinds]
        wanted_rule = to_rule(rule)
        # Resolved before the first event is read: "-2h" means the same for all of them.
        ranges = {bus: replace(self._range(bus, since, until, seq, seq_until), is_late=late) for bus in self._logs}
        return chain.from_iterable(
            self._read_bus(
                bus, wanted, EventFilter(wanted_rule, kinds, within, always=unconditional), strict=seq is not None
            )
            for bus, within in ranges.items()
        )

    def _read_bus(
        self, bus: str, wanted: list[str], event_filter: EventFilter, *, strict: bool
    ) -> Iterator[pa.RecordBatch]:
        log = self._logs[bus]
        cursor = Cursor(event_filter.within.seq, strict=strict)
        return self._add_bus_column(bus, log.read(cursor, _without_bus(wanted), event_filter), wanted)

    def table(
        self,
        rule: RuleLike | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        **which: Unpack[ReadOptions],
    ) -> pa.Table:
        """Return the events as one table; the arguments are those of ``read``."""
        return self.reader(rule, since, until, **which).read_all()

    def reader(
        self,
        rule: RuleLike | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        **which: Unpack[ReadOptions],
    ) -> pa.RecordBatchReader:
        """Return the events as a ``RecordBatchReader``, a stream for duckdb, polars and pandas."""
        batches = self.read(rule, since, until, **which)
        schema = pa.schema([self.schema.field(name) for name in self._columns(which.get("columns"))])
        return pa.RecordBatchReader.from_batches(describe_for_pandas(schema.empty_table()).schema, batches)

    def dataset(self) -> pa.dataset.Dataset:
        """Return all events as an Arrow dataset, which can be queried repeatedly and is not ordered.

        Compacted events stay on disk and are skipped by path, seq and ts; the others are loaded into memory.
        """
        import pyarrow.dataset as ds  # imports pandas if it is installed

        return ds.dataset([part for bus in self._logs for part in self._datasets(bus)])

    def _datasets(self, bus: str) -> Iterator[pa.dataset.Dataset]:
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
        batches = self._add_bus_column(bus, log.read(cursor, SCHEMA.names, EventFilter()), self.schema.names)
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
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events from ``seq`` on, and new ones as they are committed, until ``stop`` is set.

        Without ``seq`` it starts with the next event. Raises ``JournalGone`` if retention overtakes the reader.
        """
        wanted = self._columns(columns)
        cursors = {
            bus: Cursor(self._seq_for(bus, seq, log.view().last + 1), strict=True) for bus, log in self._logs.items()
        }
        return self._follow(cursors, wanted, EventFilter(to_rule(rule), _check_events(events)), stop, poll_s)

    def _follow(
        self,
        cursors: dict[str, Cursor],
        wanted: list[str],
        event_filter: EventFilter,
        stop: threading.Event | None,
        poll_s: float,
    ) -> Iterator[pa.RecordBatch]:
        stopped = stop or threading.Event()
        while not stopped.is_set():
            before = [cursor.next_seq for cursor in cursors.values()]
            for bus, cursor in cursors.items():
                for batch in self._add_bus_column(
                    bus, self._logs[bus].read(cursor, _without_bus(wanted), event_filter), wanted
                ):
                    yield batch
                    if stopped.is_set():
                        return
            if before == [cursor.next_seq for cursor in cursors.values()]:
                stopped.wait(poll_s)

    # -- trees

    def as_of(
        self,
        instant: Instant | None = None,
        rule: RuleLike | None = None,
        *,
        seq: Seqs | None = None,
        missing_ok: bool = False,
        corrected: bool = False,
    ) -> pa.Table:
        """Return the tree at an instant or just after a seq, by default now, in order of creation.

        It is what the bus showed. With ``corrected``, it is what was true: with the values that came late.

        Raises ``BeforeJournal`` for an instant before the first event, and ``NotRecorded`` if no path matches the rule;
        with ``missing_ok`` the tree is empty then.

        Columns: path, kind, value, peer (the owner), detail (of its add, or of its last describe), ts and seq (of its
        last value), created_seq, source_ts and quality (of its last value), unit, and late if ``corrected``.
        """
        made = to_rule(rule)
        trees = []
        for bus, log in self._logs.items():
            if corrected:
                tree = self._corrected_tree(bus, log, instant, seq, made)
            else:
                tree = add_unit_column(self._tree(bus, log, instant, seq, made))
            trees.append(self._add_bus_column_to_table(bus, tree))
        tree = pa.concat_tables(trees).combine_chunks() if self._many else trees[0]
        if not missing_ok:
            self._check_recorded(instant)
            if not tree.num_rows and made is not None:
                known = self.as_of(instant, seq=seq, missing_ok=True)
                check_matches([made], known["path"].to_pylist(), "at that time")
        return describe_for_pandas(tree)

    def _check_recorded(self, *instants: Instant | None) -> None:
        """Raise ``BeforeJournal`` for an instant before the first event of all buses."""
        begins = [offsets["first_ts"] for offsets in self.offsets().values() if offsets["first_ts"] is not None]
        for instant in instants:
            if instant is not None and begins:
                instant_us = max(log.instant_us(instant) for log in self._logs.values())
                check_begin(instant_us, min(begins), instant)

    def split(self) -> dict[str, Journal]:
        """Return a journal for each of the buses, by its name."""
        if not self._many:
            return dict.fromkeys(self._logs, self)
        return {bus: Journal([log.directory]) for bus, log in self._logs.items()}

    def diff(self, a: Instant, b: Instant, rule: RuleLike | None = None) -> pa.Table:
        """Return the differences between the trees at two instants; columns: path, what, before, after."""
        made = to_rule(rule)
        found = []
        self._check_recorded(a, b)
        for bus, log in self._logs.items():
            before, after = (self._tree(bus, log, instant, None, made) for instant in (a, b))
            found.append(self._add_bus_column_to_table(bus, diff_trees(before, after)))
        return pa.concat_tables(found).combine_chunks() if self._many else found[0]

    def history(
        self,
        path: str,
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        events: Iterable[str] = VALUE_EVENTS,
        typed: bool = True,
        missing_ok: bool = False,
    ) -> pa.Table:
        """Return the values of one path over time, in effective time; none if it did not change in that time.

        Raises ``NotRecorded`` for a path that did not exist then, and ``BeforeJournal`` for a range that ends before
        the first event; with ``missing_ok`` there are no rows then.

        Columns: ts, seq, event, value, num, text, flag, json, peer, source_ts, quality, late, unit. A value is JSON
        text in ``value``, and in the column of its type; ``typed=False`` leaves those out. ``late`` is true for values
        that came late; they are events ``past``. ``events`` selects other kinds of events, such as ``set`` or ``call``.
        """
        rule, wanted = make_rule(equals=path), _check_events(events) or []
        kinds = list(dict.fromkeys([*wanted, *DESCRIBING_EVENTS]))
        found = []
        for bus, journal in self.split().items():
            within = self._range(bus, since, until, None, None)
            params = {"seqUntil": self._logs[bus].view().last + 1, "columns": [*HISTORY, "path", "detail"]}
            params |= {"since": within.since_us, "until": within.until_us, "events": kinds}
            rows = run_query(read_effective(params, rule), FolderAnswers(journal)).drop_columns(["path"])
            rows = add_units_over_time(rows, self._detail_before(bus, rule, rows))
            rows = rows.filter(pc.is_in(rows["event"], value_set=pa.array(wanted, pa.string())))
            found.append(self._add_bus_column_to_table(bus, rows.select([*HISTORY, LATE.name, UNIT.name])))
        table = pa.concat_tables(found).combine_chunks() if self._many else found[0]
        if not missing_ok:
            self._check_recorded(until)
            if not table.num_rows:
                known = self.as_of(until, missing_ok=True)["path"].to_pylist()
                check_matches([rule], known, "in that time")
        return describe_for_pandas(add_typed_columns(table)) if typed else table

    def frame(
        self,
        paths: str | Rule | Sequence[str],
        since: Instant | None = None,
        until: Instant | None = None,
        *,
        every: str | float = "1s",
    ) -> pd.DataFrame:
        """Return several states side by side as a frame of pandas: a column for each path, a row for each step.

        ``paths`` is a path, a rule, or a list of them; ``every`` is a duration such as ``"1s"``, or seconds. Values are
        held until the next one, and ``<NA>`` where a state did not exist. ``frame.attrs["units"]`` has the units. With
        several buses the columns are pairs of bus and path.
        """
        pandas, asked = import_pandas(), AskedAt()
        frames, problems = {}, []
        for bus, journal in self.split().items():
            try:
                parts = run_query(read_frame(asked, paths, since, until, every), FolderAnswers(journal))
            except NotRecorded as problem:
                problems.append(problem)
                continue
            frames[bus] = make_frame(parts)
        # A path need not be on all buses.
        if not frames:
            raise next((problem for problem in problems if problem.similar), problems[0])
        if not self._many:
            return next(iter(frames.values()))
        frame = pandas.concat(frames, axis=1, names=["bus", "path"])
        frame.attrs["units"] = {(bus, path): u for bus, one in frames.items() for path, u in one.attrs["units"].items()}
        return frame

    def _detail_before(self, bus: str, rule: Rule, rows: pa.Table) -> str | None:
        """Return the detail of an element just before the first of its events, unless that event adds it."""
        if not rows.num_rows or rows["event"][0].as_py() == "add":
            return None
        log = self._logs[bus]
        live = rows["seq"].filter(pc.invert(rows[LATE.name]))
        try:
            tree = snapshots.read_tree_at_seq(log, live[0].as_py() - 1 if len(live) else log.view().last, rule)
        except (JournalGone, JournalDamaged):
            return None
        return tree["detail"][0].as_py() if tree.num_rows else None

    def elements(
        self, rule: RuleLike | None = None, since: Instant | None = None, until: Instant | None = None
    ) -> pa.Table:
        """Return the elements of a time and their descriptions, one row for each time that a description was valid.

        Columns: path, kind, schema (JSON text), unit, minimum, maximum, valid_from, valid_to (null if still valid).
        """
        made, found = to_rule(rule), []
        for bus, log in self._logs.items():
            within = self._range(bus, since, until, None, None)
            tree = TREE.empty_table()
            with suppress(JournalGone, JournalDamaged):
                if since is not None:
                    tree = snapshots.read_tree_at_instant(log, within.since_us - 1, made)
            events = EventFilter(made, ELEMENT_EVENTS, within, always=CLEARING_EVENTS)
            columns = ["event", "kind", "path", "ts", "detail"]
            batches = self._read_bus(bus, columns, events, strict=False)
            rows = list_elements(tree, within.since_us, batches)
            found.append(self._add_bus_column_to_table(bus, rows))
        return pa.concat_tables(found).combine_chunks() if self._many else found[0]

    # -- extent and statistics

    def offsets(self) -> dict[str, Offsets]:
        """Return the first and last event of each bus, the instant up to which its log is complete, id and bytes."""
        found = {}
        for bus, log in self._logs.items():
            heartbeat = read_heartbeat(log.directory)  # before the log: see there
            view = log.view()
            first_ts = view.pieces[0].ts_min_us if view.pieces else None
            last_ts = view.pieces[-1].ts_max_us if view.pieces else None
            now = last_ts
            if heartbeat is not None and heartbeat.seq <= view.last:
                now = max(heartbeat.us, last_ts or 0)
            found[bus] = Offsets(
                id=log.identity.id,
                first=view.first,
                last=view.last,
                first_ts=first_ts,
                last_ts=last_ts,
                now=now,
                bytes=sum(piece.bytes for piece in view.pieces),
            )
        return found

    def stats(self, *, top: int = 10) -> dict[str, Stats]:
        """Return statistics of each bus: events, bytes, kinds of events, top talkers, gaps, files."""
        return {bus: collect_stats(log, top) for bus, log in self._logs.items()}

    # -- helpers

    @property
    def _bus_column(self) -> list[str]:
        return [BUS.name] if self._many else []

    def _with_bus(self, schema: pa.Schema) -> pa.Schema:
        return schema.insert(0, BUS) if self._many else schema

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        known = self.schema.names
        if columns is None:
            return list(known)
        if unknown := [name for name in columns if name not in known]:
            raise JournalError(f"unknown column {', '.join(unknown)}; choose from {', '.join(known)}")
        return list(dict.fromkeys(columns))

    def _range(
        self, bus: str, since: Instant | None, until: Instant | None, seq: Seqs | None, seq_until: Seqs | None
    ) -> LogRange:
        wide = LogRange()
        return LogRange(
            self._seq_for(bus, seq, wide.seq),
            self._seq_for(bus, seq_until, wide.seq_until),
            wide.since_us if since is None else self._logs[bus].instant_us(since),
            wide.until_us if until is None else self._logs[bus].instant_us(until),
        )

    def _seq_for(self, bus: str, seq: Seqs | None, default: int) -> int:
        if isinstance(seq, Mapping):
            return seq.get(bus, default)
        return default if seq is None else seq

    def _tree(self, bus: str, log: Log, instant: Instant | None, seq: Seqs | None, rule: Rule | None) -> pa.Table:
        """Return the tree of one bus at an instant or after a seq."""
        if seq is not None and instant is not None:
            raise JournalError("give either an instant or a seq for a tree, not both")
        if instant is not None:
            return snapshots.read_tree_at_instant(log, log.instant_us(instant), rule)
        last = log.view().last
        return snapshots.read_tree_at_seq(log, min(self._seq_for(bus, seq, last), last), rule)

    def _corrected_tree(
        self, bus: str, log: Log, instant: Instant | None, seq: Seqs | None, rule: Rule | None
    ) -> pa.Table:
        """Return the tree of one bus with the values that came late."""
        if seq is not None:
            raise JournalError("what was true depends on an instant and not on a seq; give the instant")
        since_us = None if instant is None else log.instant_us(instant)
        span = PinnedRange(since_us, None, log.view().last + 1, None, None, 0)
        return run_query(read_corrected_tree(span, rule or EVERYTHING), FolderAnswers(self.split()[bus]))

    def _add_bus_column(
        self, bus: str, batches: Iterable[pa.RecordBatch], wanted: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches with the column ``bus``, if it is wanted."""
        if BUS.name not in wanted:
            yield from batches
            return
        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[BUS.name] = pa.repeat(pa.scalar(bus), batch.num_rows)
            schema = pa.schema([self.schema.field(name) for name in wanted])
            yield pa.RecordBatch.from_arrays([columns[name] for name in wanted], schema=schema)

    def _add_bus_column_to_table(self, bus: str, table: pa.Table) -> pa.Table:
        return table.add_column(0, BUS, pa.repeat(pa.scalar(bus), table.num_rows)) if self._many else table


def _without_bus(wanted: list[str]) -> list[str]:
    return [name for name in wanted if name != BUS.name]


def _check_events(events: Iterable[str] | None) -> list[str] | None:
    if events is None:
        return None
    kinds = [events] if isinstance(events, str) else list(events)
    if unknown := [kind for kind in kinds if kind not in EVENTS]:
        raise UnknownEvent(f"unknown event {', '.join(unknown)}; choose from {', '.join(EVENTS)}")
    return kinds


def _name_buses(logs: Sequence[Log]) -> list[str]:
    """Return the names of the buses, with the directory where two have the same name."""
    names = Counter(log.identity.bus for log in logs)
    return [log.identity.bus if names[log.identity.bus] == 1 else f"{log.identity.bus}:{log.directory}" for log in logs]
