"""Exports of history: record batches of events to the bytes of a file, part by part.

A file is never held in memory as a whole: each writer yields the bytes of a batch, so that long exports stream.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from jetbus.journal.effective import LATE
from jetbus.journal.recorded_units import UNIT
from jetbus.journal.spreadsheet import COLUMNS, write_events, write_lines

EVENT_FIELDS = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("seq", pa.int64()),
        ("event", pa.string()),
        ("path", pa.string()),
        ("value", pa.string()),
        ("peer", pa.string()),
        ("detail", pa.string()),
        ("source_ts", pa.timestamp("us", "UTC")),
        ("quality", pa.string()),
        UNIT,
        LATE,
    ]
)
"""Columns of exported events; an empty Parquet file has them, too."""


_STATED = ("source_ts", "quality", "unit", "late")


def show_event(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the journal as JSON: microseconds, and the value as the JSON that it is.

    ``source_ts``, ``quality`` and ``unit`` are there only if the owner of the value has stated them, and ``late`` if it
    came late.
    """
    shown = {name: value for name, value in row.items() if name not in _STATED and name not in ("ts", "value", "kind")}
    value, source_ts, quality = row["value"], row.get("source_ts"), row.get("quality")
    if source_ts is not None:
        shown["source_ts"] = _to_us(source_ts)
    if row.get("late"):
        shown["late"] = True
    if row.get("unit"):
        shown["unit"] = row["unit"]
    if quality:
        # A word is recorded as it is, an object as JSON.
        shown["quality"] = msgspec.json.decode(quality) if quality.startswith("{") else quality
    return {**shown, "ts": _to_us(row["ts"]), "value": msgspec.json.decode(value) if value else None}


def _to_us(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


def _write_csv(batches: Iterator[Any]) -> Iterator[bytes]:
    yield write_lines([COLUMNS]).encode()
    for batch in batches:
        yield write_events(batch.to_pylist()).encode()


def _write_lines(batches: Iterator[Any]) -> Iterator[bytes]:
    for batch in batches:
        yield b"".join(msgspec.json.encode(show_event(row)) + b"\n" for row in batch.to_pylist())


class _Parts(io.RawIOBase):
    """File that hands over the bytes that were written to it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        """Return the bytes that were written since the last call."""
        taken, self._parts = b"".join(self._parts), []
        return taken


def _write_parquet(batches: Iterator[Any]) -> Iterator[bytes]:
    parts = _Parts()
    with pq.ParquetWriter(pa.PythonFile(parts, mode="w"), EVENT_FIELDS, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).select(EVENT_FIELDS.names).cast(EVENT_FIELDS))
            yield parts.take()
    # The footer, which is written when the writer closes.
    yield parts.take()


EXPORTS: dict[str, tuple[str, Callable[[Iterator[Any]], Iterator[bytes]]]] = {
    "csv": ("text/csv; charset=utf-8", _write_csv),
    "jsonl": ("application/jsonl", _write_lines),
    "parquet": ("application/vnd.apache.parquet", _write_parquet),
}
"""Formats by name: their media type, and the function that writes them."""
