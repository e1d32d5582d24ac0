"""Segments on disk: the schema of the events, how files are named, which there are, and how they are made durable.

A segment is an Arrow IPC stream that any Arrow tool can read, named by the seq of its first event. The one being
written has no end-of-stream mark yet; a sealed one has and never changes again.

Texts are plain strings, compressed with lz4. Measured by ``bench/journal_write.py`` on changes of 1,000 states
(numbers, paths of 20 to 30 characters): dictionary-encoded paths make a segment 0.79 times as big with lz4, 0.78 with
zstd and 0.69 without compression, and take at least 1.3 times as long to encode with lz4. For that fifth a batch could
not be read without all before it: the index could not lead to it, and one torn dictionary would spoil all that
follows. Against no compression lz4 makes a segment 0.42 times as big and zstd 0.23, and zstd takes about 1.7 times as
long as lz4 to encode; whoever wants small files compacts.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa

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
    ]
)
"""The columns of every event, in this order."""

EVENTS = ("add", "change", "remove", "set", "call", "peer", "gone", "start", "stop", "gap")
"""All that the column ``event`` can say."""
CLEARING_EVENTS = ("start", "stop")
"""Those after which nothing is on the bus."""
KINDS = ("state", "method", None)
"""All that the column ``kind`` can say."""

SEGMENT = ".arrows"
INDEX = ".index"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The mark that ends a sealed segment."""

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
"""The modes of new files and directories: what a bus said is not for every user of the machine."""

_SEQ_DIGITS = 20


def _schema_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, SCHEMA).close()
    whole: bytes = sink.getvalue().to_pybytes()
    return whole.removesuffix(END_OF_STREAM)


SCHEMA_BYTES = _schema_bytes()
"""How every segment begins; a batch needs only this before it to be read on its own."""


class Segment(NamedTuple):
    """One segment: its files and its first seq."""

    path: Path
    first_seq: int

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX)

    @property
    def size_bytes(self) -> int:
        """Segment and index together; 0 when they are gone."""
        return _size_of(self.path) + _size_of(self.index_path)


def seq_name(seq: int) -> str:
    """A seq as it is in file names: they sort as the numbers do.

    >>> seq_name(42)
    '00000000000000000042'
    """
    return f"{seq:0{_SEQ_DIGITS}}"


def segment_at(directory: Path, first_seq: int) -> Segment:
    """The segment that begins with this seq, whether there is one or not."""
    return Segment(directory / (seq_name(first_seq) + SEGMENT), first_seq)


def list_segments(directory: Path) -> list[Segment]:
    """All segments there are, oldest first. Only the last can be unsealed."""
    found = []
    with os.scandir(directory) as files:
        for file in files:
            stem, dot, suffix = file.name.partition(".")
            if dot + suffix == SEGMENT and len(stem) == _SEQ_DIGITS and stem.isdecimal():
                found.append(Segment(Path(file.path), int(stem)))
    return sorted(found, key=lambda segment: segment.first_seq)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole or not at all, whatever happens meanwhile."""
    fresh = path.with_name(path.name + ".tmp")
    with open_private(fresh) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def open_private(path: Path) -> BinaryIO:
    """Open a new file of a journal for writing; an older one of that name is emptied."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, as far as the file system can."""
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
