"""Files of events for other tools: Parquet, Arrow's file with random access, and Arrow's stream.

Only the form is decided here; which events and columns, and where the file goes, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1 << 17
"""How many rows are gathered for one group of a file: readers are slow with many small ones."""

WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    ".parquet": lambda file, schema: pq.ParquetWriter(file, schema, compression="zstd"),
    ".arrow": lambda file, schema: pa.ipc.new_file(str(file), schema),
    ".arrows": lambda file, schema: pa.ipc.new_stream(str(file), schema),
}


def write_file(file: Path, suffix: str, schema: Any, batches: Iterable[Any]) -> int:
    """Write batches of such a schema in the form of a suffix; gives the number of rows."""
    rows, written, waiting = 0, 0, []
    with WRITERS[suffix](file, schema) as writer:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows - written >= ROWS:
                writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())
                written, waiting = rows, []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())
    return rows
