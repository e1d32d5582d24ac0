"""Segment files: the schema of events, file names, and durable writes.

A segment is an Arrow IPC stream that any Arrow tool can read, named by the seq of its first event. The one being
written lacks the end-of-stream mark yet; a sealed one has it, and never changes again.

Texts are plain strings, compressed with lz4. Measured by ``bench/journal_write.py`` on changes of 1,000 states
(numbers, paths of 20 to 30 characters): dictionary-encoded paths make a segment 0.79 times as large with lz4, 0.78 with
zstd and 0.69 without compression, and take at least 1.3 times as long to encode with lz4. They also make a batch depend
on all batches before it: the index could not lead to it, and one torn dictionary would spoil everything after it.
Compared with no compression, lz4 makes a segment 0.42 times as large and zstd 0.23, and zstd takes about 1.7 times as
long as lz4 to encode. Compaction is the way to small files.

There are two layouts. Most events have neither a source time nor a quality, so a **plain** segment is without columns
for them, and they cost nothing there. A segment with at least one event that has either is **stamped** and
has two columns more. The schema at the start of a segment says which layout it has; readers return nulls for the
columns that a plain segment lacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypedDict

import pyarrow as pa

from jetbus.journal.journal_errors import JournalError
from jetbus.json_types import Json

SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("event", pa.string()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("value", pa.string()),
        ("peer", pa.string()),
        ("detail", pa.string()),
        ("source_ts", pa.timestamp("us", tz="UTC")),
        ("quality", pa.string()),
    ]
)
"""The columns of every event, in this order."""


class JournalRow(TypedDict, total=False):
    """An event or an element of a tree as a Python dict; which members it has depends on the columns that were read."""

    seq: int
    ts: datetime
    event: str
    kind: str | None
    path: str
    """None in events of the whole bus, such as ``start``; queries for paths never return those."""
    value: str | None
    """JSON text, as are detail and quality."""
    peer: str | None
    detail: str | None
    source_ts: datetime | None
    quality: str | None
    unit: str | None
    """The unit that was valid then, in a tree or a history."""
    created_seq: int
    """The seq of its add, in a tree."""
    bus: str
    """Only in journals of several buses."""


STAMPS = ("source_ts", "quality")
"""The columns that only stamped segments have."""

NO_LATE_US = (1 << 62, -(1 << 62))
"""First and last instant of the values of the past among events that have none."""
EVENTS = ("add", "change", "remove", "describe", "past", "set", "call", "peer", "gone", "start", "stop", "gap")
"""The values of the column ``event``."""
KINDS = ("state", "method", None)
"""The values of the column ``kind``."""

SEGMENT = ".arrows"
INDEX = ".index"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The mark that ends a sealed segment."""

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
"""Modes of new files and directories: other users of the machine have no access."""

_SEQ_DIGITS = 20

JSON_BYTES_MAX = 16 * 1024 * 1024
"""Size of a JSON file of a journal, at most: a manifest has about 150 bytes for each Parquet file."""


class Layout(NamedTuple):
    """The columns of a segment."""

    schema: pa.Schema
    schema_bytes: bytes
    """The first bytes of a segment with this layout. A batch can be read on its own if they precede it."""


def _make_layout(schema: pa.Schema) -> Layout:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    whole: bytes = sink.getvalue().to_pybytes()
    return Layout(schema, whole.removesuffix(END_OF_STREAM))


PLAIN = _make_layout(pa.schema([field for field in SCHEMA if field.name not in STAMPS]))
"""The layout of segments with events that have neither a source time nor a quality."""
STAMPED = _make_layout(SCHEMA)
SCHEMA_BYTES_MAX = len(STAMPED.schema_bytes)


def find_layout(data: bytes | memoryview) -> Layout:
    """Return the layout of a segment, given its first ``SCHEMA_BYTES_MAX`` bytes or more.

    A segment with a damaged start counts as plain: its batches can be read without the columns of a stamped one.
    """
    for layout in (PLAIN, STAMPED):
        if data[: len(layout.schema_bytes)] == layout.schema_bytes:
            return layout
    # Another version of Arrow may have written the same schema in other bytes.
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, EOFError, ValueError):
        return PLAIN
    return STAMPED if schema.equals(SCHEMA) else PLAIN


def fill_columns(batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
    """Return these columns of a batch, with nulls for those that its segment or file does not have."""
    absent = [name for name in columns if batch.schema.get_field_index(name) < 0]
    if not absent:
        return batch.select(columns)
    fields = [SCHEMA.field(name) for name in columns]
    arrays = [
        pa.nulls(batch.num_rows, field.type) if field.name in absent else batch.column(field.name) for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class Segment(NamedTuple):
    """A segment: its files and its first seq."""

    path: Path
    first_seq: int

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX)

    @property
    def size_bytes(self) -> int:
        """Size of segment and index together; 0 if they do not exist."""
        return _size_of(self.path) + _size_of(self.index_path)


def format_seq(seq: int) -> str:
    """Return a seq as in file names, which sort in the order of the numbers.

    >>> format_seq(42)
    '00000000000000000042'
    """
    return f"{seq:0{_SEQ_DIGITS}}"


def locate_segment(directory: Path, first_seq: int) -> Segment:
    """Return the segment that starts with this seq, whether it exists or not."""
    return Segment(directory / (format_seq(first_seq) + SEGMENT), first_seq)


def list_segments(directory: Path) -> list[Segment]:
    """Return all segments, oldest first. Only the last can be unsealed."""
    found = []
    with os.scandir(directory) as files:
        for file in files:
            stem, dot, suffix = file.name.partition(".")
            if dot + suffix == SEGMENT and len(stem) == _SEQ_DIGITS and stem.isdecimal() and file.is_file():
                found.append(Segment(Path(file.path), int(stem)))
    return sorted(found, key=lambda segment: segment.first_seq)


def open_regular(path: Path) -> FileIO:
    """Open a file of a journal for reading; raise ``JournalError`` for a pipe or a device, which may block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise JournalError(f"{path} is not a regular file; remove it")
    return FileIO(descriptor)


def read_regular(path: Path) -> bytes:
    """Return the content of a file of a journal; raise ``JournalError`` if it is not a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_json(path: Path) -> Json:
    """Return the content of a JSON file; raise ``ValueError`` if it is wrong or larger than ``JSON_BYTES_MAX``."""
    with open_regular(path) as file:
        data = file.read(JSON_BYTES_MAX + 1)
    if len(data) > JSON_BYTES_MAX:
        raise ValueError(f"{path} is larger than {JSON_BYTES_MAX} bytes")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file atomically and durably: a crash leaves the old version or the new one."""
    fresh = path.with_name(path.name + ".tmp")
    with open_private(fresh) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def open_private(path: Path) -> BinaryIO:
    """Open a file of a journal for writing, created with ``FILE_MODE`` or truncated."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, if the file system supports it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
