"""Export of events to files for other tools: Parquet, Arrow file (random access) and Arrow stream.

Only the file format is decided here. The caller chooses the events, the columns and the place. The field ``value`` of a
file describes the values: its metadata have the ``schemas`` of the paths, and their ``unit`` if all have the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetbus.journal.effective import LATE
from jetbus.journal.reader import Journal
from jetbus.journal.recorded_units import UNIT
from jetbus.journal.typed import TYPED

ROWS = 1 << 17
"""Rows that are collected for one row group: readers are slow with many small ones."""

WRITERS: dict[str, Callable[[Path, pa.Schema], Any]] = {
    ".parquet": lambda file, schema: pq.ParquetWriter(file, schema, compression="zstd"),
    ".arrow": lambda file, schema: pa.ipc.new_file(str(file), schema),
    ".arrows": lambda file, schema: pa.ipc.new_stream(str(file), schema),
}

SCHEMAS_BYTES_MAX = 4 << 20
"""Size of the schemas in the metadata of a file; more are left out, because readers load them with every file."""


def make_schema(journal: Journal, columns: Iterable[str], elements: pa.Table) -> pa.Schema:
    """Return the schema of a file with these columns, with the descriptions of the elements in its field ``value``."""
    every = pa.schema([*journal.schema, LATE, UNIT, *TYPED])
    schema = pa.schema([every.field(name) for name in columns])
    at = schema.get_field_index("value")
    described = elements.filter(elements["schema"].is_valid())
    if at < 0 or not described.num_rows:
        return schema
    paths, texts = described["path"].to_pylist(), described["schema"].to_pylist()
    schemas = json.dumps({path: json.loads(text) for path, text in zip(paths, texts, strict=True)}, ensure_ascii=False)
    metadata = {} if len(schemas) > SCHEMAS_BYTES_MAX else {"schemas": schemas}
    units = set(elements.filter(pc.equal(elements["kind"], "state"))["unit"].to_pylist())
    if len(units) == 1 and None not in units:
        metadata["unit"] = units.pop()
    return schema.set(at, schema.field(at).with_metadata(metadata))


def write_file(file: Path, suffix: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write record batches in the format of a suffix; return the number of rows."""
    rows, written, waiting = 0, 0, []
    with WRITERS[suffix](file, schema) as writer:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows - written >= ROWS:
                writer.write_table(pa.Table.from_batches(waiting).cast(schema).combine_chunks())
                written, waiting = rows, []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting).cast(schema).combine_chunks())
    return rows
