"""Files of a journal, read with plain pyarrow as another tool would, and faults for its writer."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa

from jetbus.journal import Writer
from jetbus.journal.index import read_index
from jetbus.journal.segment import PLAIN, STAMPED, fill_columns, list_segments

Row = dict[str, Any]


class SkippingClock:
    """A monotonic clock that a test can move forward."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped_s

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self._skipped_s += seconds


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files of this process; writes beyond it are cut short, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rows_of(directory: Path, *, from_segment: int = 0) -> list[Row]:
    """Return the events of a journal, or of its later segments, after checking files, index and seqs."""
    rows: list[Row] = []
    for segment in list_segments(directory):
        if segment.first_seq < from_segment:
            continue
        data = segment.path.read_bytes()
        entries = read_index(segment.index_path)
        with pa.ipc.open_stream(data) as stream:
            batches = list(stream)
        assert [len(batch) for batch in batches] == [entry.count for entry in entries]
        for batch, entry in zip(batches, entries, strict=True):
            batch.validate(full=True)
            assert batch.schema in (PLAIN.schema, STAMPED.schema)
            assert crc32(data[entry.position : entry.end]) == entry.crc
            assert batch.column("seq")[0].as_py() == entry.seq_first
            instants = batch.column("ts").cast(pa.int64()).to_pylist()
            assert (instants[0], instants[-1]) == (entry.ts_min_us, entry.ts_max_us)
            assert instants == sorted(instants)
            rows += fill_columns(batch, STAMPED.schema.names).to_pylist()
        assert not entries or entries[0].seq_first == segment.first_seq
    seqs = [row["seq"] for row in rows]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True
    return rows


def values_of(directory: Path, *, from_segment: int = 0) -> list[str]:
    """Return the values of all changes, in order."""
    return [row["value"] for row in rows_of(directory, from_segment=from_segment) if row["event"] == "change"]


def write_changes(writer: Writer, first: int, end: int, path: str = "plant/speed") -> None:
    """Append numbered changes."""
    for number in range(first, end):
        writer.change(path, b"%d" % number, "pump#1")


def abandon(writer: Writer) -> None:
    """End a writer as a crash would: nothing is committed or sealed, but the lock is released."""
    writer.abandon()
