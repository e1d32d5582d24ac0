"""Pages of a journal, for readers without access to its files: Arrow streams of limited length.

The metadata of a page's schema say how to ask for the next one. ``next`` is a ``seq`` for events, and an ``offset`` for
a tree and for the history of a path, which is not in order of seq. A page of events always has it: at the end of the
log it is the seq of the next event to come. The last page of a tree or a history has none.

Events are paged by seq, and each page reads only its own part of the log. A tree or a history is computed as a whole,
so computing it again for every page would take quadratic time. ``PageCursors`` keeps the rest of such a table until
the next page is asked for:

    page 1: compute ---> rows 0..9 sent, rows 10..99 kept as (caller, arguments, 10)
    page 2: kept table -> rows 10..19 sent, rows 20..99 kept as (caller, arguments, 20)

A cursor is only a shortcut. When it has been dropped, the page is computed from the journal again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.instants import Instant
from jetbus.journal.reader import Journal
from jetbus.rules import Rule

ROWS_MAX = 20_000
"""Rows in a page, at most."""
PAGE_BYTES = 4 << 20
"""Approximate size of a page; one of events ends with the record batch that crosses it, others with the row."""
ROW_BYTES = 200
"""Approximate size of a row beside its path, value and detail."""
CURSORS_MAX = 4
CURSORS_BYTES = 32 << 20
CURSOR_IDLE_S = 60.0
"""Time after which an unused cursor is dropped."""
NEXT = "next"
TOTAL = "total"


class Remainder(NamedTuple):
    """The rows of a table that are still to be sent."""

    rows: pa.Table
    total: int
    """Rows of the whole table."""
    kept_s: float = 0.0


class PageCursors:
    """Remainders of partly read tables, by caller, arguments and position. Safe to use from several threads."""

    def __init__(
        self,
        cursors_max: Callable[[], int] = lambda: CURSORS_MAX,
        bytes_max: Callable[[], int] = lambda: CURSORS_BYTES,
        on_drop: Callable[[], None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cursors_max = cursors_max
        self._bytes_max = bytes_max
        self._on_drop = on_drop
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._remainders: OrderedDict[Hashable, Remainder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._remainders)

    def take(self, key: Hashable) -> Remainder | None:
        """Remove and return the remainder at a position, or None if the table has to be computed."""
        with self._lock:
            self._drop_idle()
            return self._remainders.pop(key, None)

    def put(self, key: Hashable, remainder: Remainder) -> None:
        """Keep a remainder for the next page, dropping the oldest ones beyond a limit."""
        with self._lock:
            self._drop_idle()
            self._remainders[key] = remainder._replace(kept_s=self._monotonic_s())
            self._remainders.move_to_end(key)
            while self._remainders and self._are_too_many():
                self._remainders.popitem(last=False)
                self._on_drop()

    def _are_too_many(self) -> bool:
        # Slices of a table share its memory, and keep all of it.
        size_bytes = sum(one.rows.get_total_buffer_size() for one in self._remainders.values())
        return len(self._remainders) > self._cursors_max() or size_bytes > self._bytes_max()

    def _drop_idle(self) -> None:
        oldest_s = self._monotonic_s() - CURSOR_IDLE_S
        for key in [key for key, remainder in self._remainders.items() if remainder.kept_s < oldest_s]:
            del self._remainders[key]


def write_events_page(
    journal: Journal,
    rule: Rule | None = None,
    *,
    since: Instant | None = None,
    until: Instant | None = None,
    seq: int | None = None,
    seq_until: int | None = None,
    columns: Sequence[str] | None = None,
    events: Iterable[str] | None = None,
    always: Iterable[str] | None = None,
    late: bool = False,
    limit: int = ROWS_MAX,
) -> bytes:
    """Return a page of the events of a journal over one bus, in order of seq."""
    last = next(iter(journal.offsets().values()))["last"]
    end = last + 1 if seq_until is None else min(seq_until, last + 1)
    # The seq of the last row says where the next page starts, so it is read even if the caller does not want it.
    read_columns = None if columns is None else list(dict.fromkeys([*columns, "seq"]))
    parts, rows, size_bytes, next_seq = [], 0, 0, end
    found = journal.read(rule, since, until, seq, end, columns=read_columns, events=events, always=always, late=late)
    for batch in found:
        part = batch.slice(0, limit - rows)
        parts.append(part)
        rows += part.num_rows
        size_bytes += part.nbytes
        if rows >= limit or size_bytes >= PAGE_BYTES:
            next_seq = part["seq"][-1].as_py() + 1
            break
    schema = journal.schema if read_columns is None else pa.schema(map(journal.schema.field, read_columns))
    table = pa.Table.from_batches(parts, schema=schema)
    return _encode_page(table if columns is None else table.select(list(columns)), {NEXT: next_seq})


def write_tree_page(
    journal: Journal,
    instant: Instant | None = None,
    rule: Rule | None = None,
    *,
    seq: int | None = None,
    offset: int = 0,
    limit: int = ROWS_MAX,
    cursors: PageCursors | None = None,
    caller: Hashable = None,
) -> bytes:
    """Return a page of the tree at an instant or after a seq, in order of creation."""
    cursors = PageCursors() if cursors is None else cursors
    # The caller is part of the key: a remainder has the rows that one user may see, and must never be sent to another.
    key = ("tree", caller, repr(instant), repr(rule), seq)
    # A first page is always computed anew, so that asking again shows later events.
    remainder = cursors.take((key, offset)) if offset else None
    if remainder is None:
        tree = journal.as_of(instant, rule, seq=seq, missing_ok=True)
        remainder = Remainder(tree.slice(offset), tree.num_rows)
    page, rest = _split(remainder.rows, limit)
    metadata = {TOTAL: remainder.total}
    if rest.num_rows:
        metadata[NEXT] = offset + page.num_rows
        cursors.put((key, metadata[NEXT]), Remainder(rest, remainder.total))
    return _encode_page(page, metadata)


def write_history_page(
    journal: Journal,
    path: str,
    since: Instant | None = None,
    until: Instant | None = None,
    *,
    offset: int = 0,
    limit: int = ROWS_MAX,
    cursors: PageCursors | None = None,
    caller: Hashable = None,
) -> bytes:
    """Return a page of the values of one path over time."""
    cursors = PageCursors() if cursors is None else cursors
    key = ("history", caller, path, repr(since), repr(until))
    remainder = cursors.take((key, offset)) if offset else None
    if remainder is None:
        history = journal.history(path, since, until, typed=False, missing_ok=True)
        remainder = Remainder(history.slice(offset), history.num_rows)
    page, rest = _split(remainder.rows, limit)
    metadata = {}
    if rest.num_rows:
        metadata[NEXT] = offset + page.num_rows
        cursors.put((key, metadata[NEXT]), Remainder(rest, remainder.total))
    return _encode_page(page, metadata)


def _split(rows: pa.Table, limit: int) -> tuple[pa.Table, pa.Table]:
    """Return the rows of the next page, and the rest."""
    count = measure_rows(rows.slice(0, limit), PAGE_BYTES)[0]
    return rows.slice(0, count), rows.slice(count)


def measure_rows(rows: pa.Table | pa.RecordBatch, bytes_max: int) -> tuple[int, int]:
    """Return the number of rows that fit into so many bytes, at least one if there is any, and their bytes."""
    texts = [rows[name] for name in ("path", "value", "detail") if name in rows.schema.names]
    lengths = [pc.fill_null(pc.binary_length(column), 0).to_pylist() for column in texts]
    count = size_bytes = 0
    for row in zip(*lengths, strict=True):
        if count and size_bytes >= bytes_max:
            break
        count += 1
        size_bytes += ROW_BYTES + sum(row)
    return count, size_bytes


def read_page(page: bytes) -> tuple[pa.Table, int | None]:
    """Return a page as a table, and the ``seq`` or ``offset`` of the next page if there is one."""
    table = pa.ipc.open_stream(page).read_all()
    next_position = (table.schema.metadata or {}).get(NEXT.encode())
    return table, None if next_position is None else int(next_position)


def _encode_page(table: pa.Table, metadata: Mapping[str, int]) -> bytes:
    table = table.replace_schema_metadata({name: str(number) for name, number in metadata.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded
