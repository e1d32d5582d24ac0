"""A journal page by page, for those who read it from afar: each page is an Arrow stream of limited length.

The metadata of a page's schema say how to go on: ``next`` is the ``seq`` (of events and of a path's history) or the
``offset`` (of a tree) of the next page. A page of events always has one: at the end of the log it is the seq of the
event that is yet to come. The last page of the others has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.instants import Instant
from jetbus.journal.reader import Journal
from jetbus.rules import Rule

ROWS_MAX = 20_000
"""How many rows a page has at most."""
PAGE_BYTES = 4 << 20
"""About how long a page may be, as far as whole batches allow."""
NEXT = "next"


def events_page(
    journal: Journal,
    rule: Rule | None = None,
    *,
    since: Instant | None = None,
    until: Instant | None = None,
    seq: int | None = None,
    seq_until: int | None = None,
    columns: Sequence[str] | None = None,
    events: Iterable[str] | None = None,
    limit: int = ROWS_MAX,
) -> bytes:
    """Events of a journal over one bus, in order."""
    last = next(iter(journal.offsets().values()))["last"]
    end = last + 1 if seq_until is None else min(seq_until, last + 1)
    wanted = None if columns is None else list(dict.fromkeys([*columns, "seq"]))
    kept, rows, size, go_on = [], 0, 0, end
    for batch in journal.read(rule, since, until, seq=seq, seq_until=end, columns=wanted, events=events):
        part = batch.slice(0, limit - rows)
        kept.append(part)
        rows += part.num_rows
        size += part.nbytes
        if rows >= limit or size >= PAGE_BYTES:
            go_on = part["seq"][-1].as_py() + 1
            break
    schema = journal.schema if wanted is None else pa.schema([journal.schema.field(name) for name in wanted])
    table = pa.Table.from_batches(kept, schema=schema)
    return _written(table if columns is None else table.select(list(columns)), {NEXT: go_on})


def tree_page(
    journal: Journal,
    instant: Instant | None = None,
    rule: Rule | None = None,
    *,
    seq: int | None = None,
    offset: int = 0,
    limit: int = ROWS_MAX,
) -> bytes:
    """The tree at an instant or after a seq, in order of creation."""
    tree = journal.as_of(instant, rule, seq=seq)
    page = tree.slice(offset, limit)
    end = offset + page.num_rows
    return _written(page, {"total": tree.num_rows, **({NEXT: end} if end < tree.num_rows else {})})


def history_page(
    journal: Journal,
    path: str,
    since: Instant | None = None,
    until: Instant | None = None,
    *,
    seq: int = 0,
    limit: int = ROWS_MAX,
) -> bytes:
    """The values of one path over time, from a seq on."""
    table = journal.history(path, since, until)
    table = table.filter(pc.greater_equal(table["seq"], seq))
    left = table.num_rows > limit
    return _written(table.slice(0, limit), {NEXT: table["seq"][limit].as_py()} if left else {})


def read_page(page: bytes) -> tuple[Any, int | None]:
    """A page as a table, and how to go on."""
    table = pa.ipc.open_stream(page).read_all()
    go_on = (table.schema.metadata or {}).get(NEXT.encode())
    return table, None if go_on is None else int(go_on)


def _written(table: Any, metadata: Mapping[str, int]) -> bytes:
    table = table.replace_schema_metadata({name: str(number) for name, number in metadata.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found
