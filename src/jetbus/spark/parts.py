"""One part of a batch, all rows of some paths: history, rollups and availability made of it in one go.

This is what a task runs. Spark either gets the rows of one stage back as a frame, or the task writes the rows of all
of them as files and tells their names; both are made by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetbus.spark.clock import Clock
from jetbus.spark.files import OPEN, write_days
from jetbus.spark.lines import NONE, Ints, availability_of, history_of, keys_of, line_of
from jetbus.spark.schemas import TABLES
from jetbus.spark.windows import SIZES, rollups_of

__all__ = ["FILES", "LINE", "SIGNS", "STAGES", "give", "part_of", "write"]

LINE = ("bus", "path", "seq", "ts", "event", "kind", "value", "num", "text", "flag", "peer")
"""The columns of events that a part has."""
SIGNS = ("add", "change", "remove")
"""The events that are about one path."""

STAGES = {"history": "history", "rollups": "rollups_1s", "availability": "availability"}
"""The stages that look at a path from event to event, and the table whose columns each has."""

FILES = "stage string, file string"
"""What a task that writes tells: columns of its rows."""


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


def _part(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """All rows of a part; None if there are none."""
    found = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(found).combine_chunks() if found else None


# -- few rows, without Spark
#
# What `stages.together` does by Spark, for a batch that is one part anyway: planning and starting a job would take ten
# times as long as what is to be done.


def part_of(events: Iterable[Path], carried: Mapping[str, Iterable[Path]]) -> pa.Table:
    """The rows of a batch and what the stages have left open, from the files they are in, as one part."""
    values, windows, spans = (_read(carried.get(stage, ())) for stage in STAGES)
    parts = [_signs(_read(events, LINE))]
    if values is not None:
        told = values.rename_columns({"valid_from": "ts"}).append_column("kind", _all(values, "state"))
        parts.append(told.select([*LINE]).append_column("told", _all(values, True)))
    if windows is not None:
        parts.append(_packed(windows, "window"))
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
        parts.append(packed)
    return pa.concat_tables(parts, promote_options="default").combine_chunks()


def _read(files: Iterable[Path], columns: Sequence[str] | None = None) -> pa.Table | None:
    """The rows of some files; None if there are no files."""
    found = [pq.ParquetFile(file).read(columns=columns) for file in files]
    return pa.concat_tables(found) if found else None


def _signs(events: pa.Table) -> pa.Table:
    is_sign = pc.is_in(events["event"], value_set=pa.array(SIGNS))
    signs = events.filter(pc.and_(is_sign, events["path"].is_valid()))
    kind = signs["kind"].fill_null("state")
    signs = signs.set_column(signs.column_names.index("kind"), "kind", kind)
    return signs.append_column("told", _all(signs, False))


def _packed(rows: pa.Table, name: str) -> pa.Table:
    """Bus, path, and all other columns of a row as one."""
    rest = rows.drop_columns(["bus", "path"]).to_struct_array()
    return rows.select(["bus", "path"]).append_column(name, rest)


def _all(rows: pa.Table, value: object) -> pa.Array:
    return pa.repeat(pa.scalar(value), len(rows))


# -- as a frame


def give(batches: Iterable[pa.RecordBatch], *, stage: str, clock: Clock) -> Iterator[pa.RecordBatch]:
    """The rows of one stage, with a column ``into`` that says where each belongs."""
    rows = _part(batches)
    if rows is None:
        return
    for made in make(rows, clock, [stage]):
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


def write(batches: Iterable[pa.RecordBatch], *, clock: Clock, folder: str) -> Iterator[pa.RecordBatch]:
    """Write the rows of all stages below a folder, by stage, table and day; gives the files."""
    rows = _part(batches)
    if rows is None:
        return
    files = [(made.stage, file) for made in make(rows, clock) for file in _written(made, Path(folder))]
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, pa.string()) for column in (zip(*files, strict=True) if files else ((), ()))],
        names=["stage", "file"],
    )


def _written(made: Made, folder: Path) -> Iterator[str]:
    """Write what a stage made, each row to where it goes."""
    for place in np.unique(made.into):
        is_place = made.into == place
        rows = made.rows if is_place.all() else made.rows.filter(pa.array(is_place))
        into = OPEN if place < 0 else made.tables[place]
        yield from write_days(rows, folder / made.stage / f"into={into}", TABLES[STAGES[made.stage]].time)
