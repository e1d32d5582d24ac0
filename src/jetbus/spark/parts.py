"""One part of a batch, all rows of some paths: history, rollups and availability made of it in one go.

This is what a task runs. Spark either gets the rows of one stage back as a frame, or the task writes the rows of all
of them as files and tells their names; both are made by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetbus.spark.clock import Clock
from jetbus.spark.files import OPEN, write_days
from jetbus.spark.lines import NONE, Ints, availability_of, flags, history_of, keys_of, line_of, places_of
from jetbus.spark.schemas import TABLES
from jetbus.spark.typed import CODED, coded
from jetbus.spark.windows import SIZES, rollups_of

__all__ = ["LINE", "SIGNS", "STAGES", "carried_rows", "give", "parts_of", "signs_of", "write"]

LINE = ("bus", "path", "seq", "ts", "event", "kind", "value", "num", "text", "flag", "peer")
"""The columns of events that a part has."""
SIGNS = ("add", "change", "remove")
"""The events that are about one path."""

STAGES = {"history": "history", "rollups": "rollups_1s", "availability": "availability"}
"""The stages that look at a path from event to event, and the table whose columns each has."""


PART_EVENTS = 250_000
"""Events that one task has in memory, some 200 bytes each; more if a single path has more of them in one batch."""


def parts_of(events: int) -> int:
    """How many parts a batch of so many events is made in."""
    return max(1, -(-events // PART_EVENTS))


@dataclass(frozen=True)
class Made:
    """What a stage made: rows, and which table each goes into."""

    stage: str
    rows: pa.Table
    into: Ints
    """A place in ``tables``, -1 for rows that are open."""
    tables: tuple[str, ...]


def make(rows: pa.Table, clock: Clock, wanted: Iterable[str] = STAGES) -> Iterator[Made]:
    """All that is made of a part, one stage after the other."""
    chosen = tuple(wanted)
    keys = keys_of(rows)
    line = line_of(rows, keys, clock)
    if "history" in chosen or "rollups" in chosen:
        columns, values = history_of(rows, keys, line)
        if "history" in chosen:
            yield _made("history", columns, np.where(values.end == NONE, -1, 0), ("history",))
        if "rollups" in chosen:
            windows, into = rollups_of(rows, keys, values, clock)
            yield _made("rollups", windows, into, tuple(SIZES))
    if "availability" in chosen:
        spans, until = availability_of(rows, keys, line)
        yield _made("availability", spans, np.where(until == NONE, -1, 0), ("availability",))


def _made(stage: str, columns: dict[str, pa.Array], into: Ints, tables: tuple[str, ...]) -> Made:
    names = TABLES[STAGES[stage]].names
    return Made(stage, pa.table({name: columns[name] for name in names}), into, tables)


# -- the rows of a part
#
# What `stages.together` does by Spark for anybody's frame. Rows are events, told now or (``told``) before; or they have
# a ``window`` or a ``span`` that is not over.


def signs_of(events: pa.Table) -> pa.Table:
    """What some events tell of paths."""
    is_sign = (places_of(events["event"], SIGNS) >= 0) & flags(events["path"].is_valid())
    signs = events.select([*LINE])
    signs = signs if is_sign.all() else signs.filter(pa.array(is_sign))
    if signs["kind"].null_count:
        kind = signs["kind"].cast(pa.string()).fill_null("state")
        signs = _coded(signs.set_column(signs.column_names.index("kind"), "kind", kind))
    return signs.append_column("told", _all(signs, False))


def carried_rows(carried: Mapping[str, Iterable[Path]]) -> list[pa.Table]:
    """What the stages have left open, in these files."""
    values, windows, spans = (_read(carried.get(stage, ())) for stage in STAGES)
    found = []
    if values is not None:
        told = values.rename_columns({"valid_from": "ts"}).append_column("kind", _all(values, "state"))
        found.append(told.select([*LINE]).append_column("told", _all(values, True)))
    if windows is not None:
        found.append(_packed(windows, "window"))
    if spans is not None:
        is_method = pc.not_equal(spans["kind"], "state")
        sign = {
            "seq": spans["seq"],
            "ts": spans["last_ts"],
            "kind": spans["kind"],
            "event": pc.if_else(is_method, "add", pa.scalar(None, pa.string())),
            "told": _all(spans, True),
        }
        packed = _packed(spans, "span")
        for name, column in sign.items():
            packed = packed.append_column(name, column)
        found.append(packed)
    return [_coded(rows) for rows in found]


def _read(files: Iterable[Path]) -> pa.Table | None:
    """The rows of some files; None if there are no files."""
    found = [pq.ParquetFile(file).read() for file in files]
    return pa.concat_tables(found) if found else None


def _packed(rows: pa.Table, name: str) -> pa.Table:
    """Bus, path, and all other columns of a row as one."""
    rest = rows.drop_columns(["bus", "path"]).to_struct_array()
    return rows.select(["bus", "path"]).append_column(name, rest)


def _coded(rows: pa.Table) -> pa.Table:
    for name in CODED:
        if name in rows.column_names:
            rows = rows.set_column(rows.column_names.index(name), name, coded(rows[name]))
    return rows


def _all(rows: pa.Table, value: object) -> pa.Array:
    return pa.repeat(pa.scalar(value), len(rows))


# -- as a frame


def give(batches: Iterable[pa.RecordBatch], *, stage: str, clock: Clock) -> Iterator[pa.RecordBatch]:
    """The rows of one stage, with a column ``into`` that says where each belongs."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return
    for made in make(pa.Table.from_batches(found).combine_chunks(), clock, [stage]):
        names = pa.array([*made.tables, OPEN])
        into = names.take(pa.array(np.where(made.into < 0, len(made.tables), made.into)))
        yield from _plain(made.rows.append_column("into", into)).to_batches()


def _plain(rows: pa.Table) -> pa.Table:
    """The same without dictionaries, as Spark takes it."""
    schema = pa.schema(
        [(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in rows.schema]
    )
    return rows.cast(schema)


# -- as files


def write(rows: pa.Table, *, clock: Clock, folder: Path) -> list[str]:
    """Write the rows of all stages below a folder, by stage, table and day; gives the files."""
    if not len(rows):
        return []
    return [file for made in make(rows.combine_chunks(), clock) for file in _written(made, folder)]


def _written(made: Made, folder: Path) -> Iterator[str]:
    """Write what a stage made, each row to where it goes."""
    for place in np.unique(made.into):
        is_place = made.into == place
        rows = made.rows if is_place.all() else made.rows.filter(pa.array(is_place))
        into = OPEN if place < 0 else made.tables[place]
        yield from write_days(rows, folder / made.stage / f"into={into}", TABLES[STAGES[made.stage]].time)
